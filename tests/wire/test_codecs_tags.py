"""Tagged fields in every message: unknown ones are passed over, private ones can be declared."""

import pytest
from codec_strategies import (
    SIDED_CASES,
    UNUSED_TAG,
    bare_message,
    case_id,
    full_message,
    sided,
    with_notes,
    with_private_tag,
)

from anabranch.wire.api import Api
from anabranch.wire.codegen_decode import make_decoder
from anabranch.wire.codegen_encode import make_encoder

FLEXIBLE = [case for case in SIDED_CASES if case[0].is_flexible(case[1])]
OLD = [case for case in SIDED_CASES if not case[0].is_flexible(case[1])]


@pytest.mark.parametrize(("api", "version", "kind"), FLEXIBLE, ids=case_id)
@pytest.mark.parametrize("tag", [9, UNUSED_TAG])
def test_unknown_tags_are_passed_over(api: Api, version: int, kind: str, tag: int) -> None:
    """A tag that nobody here knows, in every struct at once, changes nothing that is read."""
    cls, _, decode = sided(api, version, kind)
    message = full_message(cls, version, flexible=True, private=True)
    tagged_class = with_private_tag(cls, tag)
    encode = make_encoder(tagged_class, version, flexible=True)
    data = b"".join(encode(with_notes(message, tagged_class, "note " * 30)))
    assert data.count(b"note note") >= 1 + (cls is api.response)
    assert decode(memoryview(data), 0) == (message, len(data))


@pytest.mark.parametrize(("api", "version", "kind"), FLEXIBLE, ids=case_id)
def test_private_tags_are_read_back(api: Api, version: int, kind: str) -> None:
    """A declared tag of ours carries its value in every struct, and is absent when default."""
    cls, plain_encode, _ = sided(api, version, kind)
    tagged_class = with_private_tag(cls)
    encode = make_encoder(tagged_class, version, flexible=True)
    decode = make_decoder(tagged_class, version, flexible=True)
    for message in (
        full_message(cls, version, flexible=True),
        bare_message(cls, version, flexible=True),
    ):
        noted = with_notes(message, tagged_class, "ours")
        data = b"".join(encode(noted))
        assert decode(memoryview(data), 0) == (noted, len(data))
        silent = b"".join(encode(with_notes(message, tagged_class, "")))
        assert silent == b"".join(plain_encode(message))


@pytest.mark.parametrize(("api", "version", "kind"), OLD, ids=case_id)
def test_private_tags_stay_out_of_old_versions(api: Api, version: int, kind: str) -> None:
    """A version without tags has the same bytes whether or not a private tag was declared."""
    cls, plain_encode, _ = sided(api, version, kind)
    tagged_class = with_private_tag(cls)
    encode = make_encoder(tagged_class, version, flexible=False)
    message = full_message(cls, version, flexible=False)
    noted = with_notes(message, tagged_class, "ours")
    assert b"".join(encode(noted)) == b"".join(plain_encode(message))
