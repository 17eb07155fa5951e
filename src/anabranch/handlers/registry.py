"""All routes: the one list of what this broker serves. Only what is here is advertised."""

from anabranch.handlers import (
    api_versions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from anabranch.handlers.route import Route

ROUTES: dict[int, Route] = {
    module.ROUTE.api.key: module.ROUTE
    for module in (
        api_versions,
        create_topics,
        delete_topics,
        describe_cluster,
        describe_configs,
        fetch,
        find_coordinator,
        init_producer_id,
        list_offsets,
        metadata,
        offset_for_leader_epoch,
        produce,
    )
}

api_versions.set_served(ROUTES)
