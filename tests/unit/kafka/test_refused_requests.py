"""Answers to requests that are refused as a whole, against those of Kafka 4.3.1 to the same requests."""

from __future__ import annotations

import pytest

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.refused_requests import refused
from support.answers_during_login import answer_of, asked, compared, kafkas_answers, request_entity
from support.requests_of_each_api import codes

CODE = ErrorCode.ILLEGAL_SASL_STATE
KAFKAS = kafkas_answers()
CODES_ALONE = {
    (9, 1): "the metadata of an offset are null here, empty there",
    (48, 0): "the list is empty here, null there",
    (48, 1): "as before",
    (50, 0): "Kafka adds a result without a name for each user",
}


def test_each_request_has_an_answer_of_kafka() -> None:
    assert list(KAFKAS) == asked()


@pytest.mark.parametrize("key", sorted({key for key, _ in KAFKAS}))
def test_a_refused_request_has_the_answer_of_kafka_in_each_version(key: int) -> None:
    for version in (version for one, version in KAFKAS if one == key):
        entity = refused(key, version, request_entity(key, version), CODE, "why")
        data = messages.encode_response(key, version, 77, entity)
        ours, kafkas = (compared(answer_of(key, version, one)) for one in (data, KAFKAS[key, version]))
        if (key, version) in CODES_ALONE:
            assert ours != kafkas
            assert set(codes(ours)) == set(codes(kafkas)) == {CODE}
        else:
            assert ours == kafkas, f"version {version}"


def test_the_text_is_in_the_answer_where_it_has_room_for_one() -> None:
    entity = refused(31, 3, request_entity(31, 3), CODE, "why")
    assert [one.error_message for one in entity.filter_results] == ["why", "why"]


@pytest.mark.parametrize("version", range(13))
def test_a_request_for_all_topics_is_refused_although_it_names_none(version: int) -> None:
    schema = messages.request_type(3, version)
    everything = messages.decode_body(3, version, _all_topics(version))
    assert type(everything) is schema
    assert refused(3, version, everything, CODE, "why").topics == ()


def _all_topics(version: int) -> bytes:
    topics = b"\0" if version >= 9 else b"\xff" * 4 if version else bytes(4)
    flags = {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 1, 8: 3, 9: 3, 10: 3, 11: 2, 12: 2}[version]
    return topics + bytes(flags) + (b"\0" if version >= 9 else b"")
