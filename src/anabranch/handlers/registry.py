"""All routes: the one list of what this broker serves. Only what is here is advertised."""

from anabranch.handlers import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    incremental_alter_configs,
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
        alter_configs,
        api_versions,
        create_partitions,
        create_topics,
        delete_records,
        delete_topics,
        describe_cluster,
        describe_configs,
        describe_log_dirs,
        describe_producers,
        describe_topic_partitions,
        fetch,
        find_coordinator,
        incremental_alter_configs,
        init_producer_id,
        list_offsets,
        metadata,
        offset_for_leader_epoch,
        produce,
    )
}

api_versions.set_served(ROUTES)
