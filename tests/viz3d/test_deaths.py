"""Who died first, and who only followed."""

from __future__ import annotations

import pytest

from megascope.viz3d.deaths import Death, first_deaths, parse_actions, parse_deaths

SECOND = 10**9


def ranks(deaths: list[Death]) -> list[int]:
    return [death.rank for death in deaths]


def test_peers_of_a_killed_rank_complain_before_its_death_is_noticed() -> None:
    deaths = [
        Death(1, "exception", 10, "RuntimeError", "Connection reset by peer"),
        Death(4, "exception", 11, "PeerLostError", "the group broke"),
        Death(5, "gone", SECOND // 2),
    ]
    assert ranks(first_deaths(deaths, {1, 4})) == [5]


def test_the_launcher_ends_the_others_in_the_same_look() -> None:
    deaths = [Death(rank, "gone", 5 * SECOND, active_ns=SECOND * (1 if rank == 3 else 2)) for rank in range(4)]
    assert ranks(first_deaths(deaths, set())) == [3]
    assert ranks(first_deaths(deaths, {3})) == [0]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("KeyError", "'encoder.skip_connection.weight'"),
        ("AttributeError", "'Loader' object has no attribute 'reset'"),
        ("ValueError", "timeout must be positive"),
        ("RuntimeError", "peer dependency of the tokenizer is missing"),
        ("OSError", "socket path too long"),
    ],
)
def test_words_in_a_message_make_no_aftermath(kind: str, message: str) -> None:
    own = Death(2, "exception", 10, kind, message)
    assert not own.is_aftermath
    assert ranks(first_deaths([own, Death(0, "gone", 2 * SECOND, active_ns=1)], set())) == [2]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ConnectionResetError", ""),
        ("torch.distributed.DistBackendError", "NCCL error"),
        ("PeerLostError", "the group broke"),
        ("RuntimeError", "[../gloo/pair.cc] Connection closed by peer [10.0.0.1]:123"),
        ("RuntimeError", "Timed out waiting 1800000ms for recv operation to complete"),
    ],
)
def test_exceptions_that_speak_of_others_are_aftermath(kind: str, message: str) -> None:
    assert Death(2, "exception", 10, kind, message).is_aftermath


def test_an_exception_of_its_own_comes_before_the_deaths_that_follow() -> None:
    deaths = [
        Death(2, "exception", 10, "FloatingPointError", "loss is nan"),
        Death(0, "exception", 500, "RuntimeError", "Connection closed by peer"),
        Death(1, "gone", 2 * SECOND),
    ]
    assert ranks(first_deaths(deaths, {0, 1})) == [2]


def test_several_ranks_may_raise_the_same_at_once() -> None:
    deaths = [Death(rank, "exception", 1000 + rank, "OutOfMemoryError", "CUDA out of memory") for rank in (188, 189)]
    assert ranks(first_deaths(deaths, set())) == [188, 189]


def test_if_all_complain_of_peers_the_first_is_named() -> None:
    deaths = [Death(rank, "exception", rank, "RuntimeError", "Timed out waiting") for rank in (3, 6)]
    assert ranks(first_deaths(deaths, set())) == [3]


def test_actions_are_parsed_and_junk_is_not_fatal() -> None:
    text = (
        '[{"action": "noticed-death", "moment_ns": 5, "rank": 1, "state": "gone"}, {"action": "snapshot"}, 7,'
        ' {"action": "noticed-death", "moment_ns": 3, "rank": 1, "state": "exception", "type": "E", "message": "m"}]'
    )
    assert parse_deaths(parse_actions(text)) == [Death(1, "exception", 3, "E", "m")]
    assert parse_actions("{") == parse_actions(None) == parse_actions('{"a": 1}') == []
