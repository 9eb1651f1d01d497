"""Settings that could not work stop the process, and say which they are."""

from typing import get_args

import pytest

from infra.settings import PREFIX, Settings
from schema.errors import Misconfigured

FLOATS = sorted(
    name
    for name, about in Settings.model_fields.items()
    if about.annotation is float or float in get_args(about.annotation)
)


def with_(**settings: str) -> Settings:
    environment = {PREFIX + name.upper(): value for name, value in settings.items()}
    return Settings.from_environment({"DATABASE_URL": "postgresql://h/n", **environment})


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e9", "-1"])
def test_no_time_is_endless_or_longer_than_the_neighbours_take(name: str, value: str) -> None:
    with pytest.raises(Misconfigured, match=PREFIX + name.upper()):
        with_(**{name: value})


@pytest.mark.parametrize(
    "name", ["statement_timeout_seconds", "idle_in_transaction_timeout_seconds"]
)
def test_a_limit_that_postgres_would_round_to_none_is_refused(name: str) -> None:
    with pytest.raises(Misconfigured, match=PREFIX + name.upper()):
        with_(**{name: "0.0001"})


@pytest.mark.parametrize(("pool_size", "many"), [("10", 4), ("5", 4), ("4", 3), ("1", 1)])
def test_large_submissions_leave_a_connection_of_the_pool(pool_size: str, many: int) -> None:
    assert with_(database_pool_size=pool_size).large_submissions == many


@pytest.mark.parametrize("name", ["poll_floor_seconds", "maintenance_interval_seconds"])
def test_a_loop_that_rests_longer_than_a_stuck_one_may_is_refused(name: str) -> None:
    with pytest.raises(Misconfigured, match=PREFIX + name.upper()):
        with_(**{name: "120"})
    assert getattr(with_(**{name: "120", "liveness_timeout_seconds": "150"}), name) == 120


def test_a_long_poll_that_lasts_longer_than_a_stuck_loop_is_refused() -> None:
    short = {"liveness_timeout_seconds": "24", "receive_wait_seconds": "20"}
    with pytest.raises(Misconfigured, match="HAULAGE_RECEIVE_WAIT_SECONDS"):
        with_(**short)
    environment = {f"{PREFIX}{name.upper()}": value for name, value in short.items()}
    environment |= {"DATABASE_URL": "postgresql://h/n", "CONSUMER_MODE": "outbox"}
    assert Settings.from_environment(environment).liveness_timeout_seconds == 24


def test_one_queue_for_two_purposes_is_refused() -> None:
    """A drain of dead letters that was given the queue of work took what was to be done."""
    url = "https://sqs.eu-central-1.amazonaws.com/1/work"
    with pytest.raises(Misconfigured, match="must be different queues"):
        with_(queue_url=url, dead_letter_queue_url=f"{url}/")
    assert with_(queue_url=url, events_queue_url=f"{url}-events").queue_url == url


@pytest.mark.parametrize("service", ["HAULAGE", "HAULAGE_API", "HAULAGE_DB"])
def test_what_kubernetes_tells_of_its_services_is_no_setting(service: str) -> None:
    told = {
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "8080",
        f"{service}_SERVICE_PORT_HTTP": "8080",
        f"{service}_PORT": "tcp://10.0.0.1:8080",
        f"{service}_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        f"{service}_PORT_8080_TCP_PROTO": "tcp",
        f"{service}_PORT_8080_TCP_PORT": "8080",
        f"{service}_PORT_8080_TCP_ADDR": "fd00::1",
    }
    given = {"DATABASE_URL": "postgresql://h/n", "HAULAGE_HEALTH_PORT": "9000"}
    assert Settings.from_environment(given | told) == with_(health_port="9000")
    with pytest.raises(Misconfigured, match="HAULAGE_API_PORT"):
        Settings.from_environment({"DATABASE_URL": "postgresql://h/n", "HAULAGE_API_PORT": "x"})
    with pytest.raises(Misconfigured, match="the nearest is HAULAGE_HEALTH_PORT"):
        with_(healt_port="9000")


@pytest.mark.parametrize("name", sorted(Settings.model_fields.keys() - {"database_url"}))
def test_an_empty_variable_is_one_that_is_not_set(name: str) -> None:
    """An empty address was one to listen on for all, an empty URL a queue that nobody sent to."""
    own = {"consumer_mode": "CONSUMER_MODE"}.get(name, PREFIX + name.upper())
    environment = {"DATABASE_URL": "postgresql://h/n", own: ""}
    assert Settings.from_environment(environment) == with_()


def test_an_empty_url_of_the_database_is_one_that_is_missing() -> None:
    with pytest.raises(Misconfigured, match="DATABASE_URL: Field required"):
        Settings.from_environment({"DATABASE_URL": ""})


@pytest.mark.parametrize(
    "name",
    [
        "s3://haulage",
        "my bucket",
        "No_Such/Bucket",
        "a",
        "a..b",
        "haulage/",
        "-b-",
        " ",
        "a.-b",
        "10.0.0.1",
    ],
)
def test_what_names_no_bucket_is_refused(name: str) -> None:
    """Each export would be refused for it, and give up at its first attempt."""
    with pytest.raises(Misconfigured, match="HAULAGE_BUCKET: .*the name of a bucket"):
        with_(bucket=name)


@pytest.mark.parametrize("address", ["foo", "ftp://h/1/work", "https://sqs.amazonaws.com"])
def test_what_is_no_address_of_a_queue_is_refused(address: str) -> None:
    with pytest.raises(Misconfigured, match="HAULAGE_QUEUE_URL: .*is not the URL of a queue"):
        with_(queue_url=address)


@pytest.mark.parametrize("name", ["queue_url", "events_queue_url", "dead_letter_queue_url"])
def test_a_fifo_queue_is_refused(name: str) -> None:
    """SQS would refuse every message: order is kept in Postgres, and groups are for fairness."""
    with pytest.raises(Misconfigured, match=f"{PREFIX}{name.upper()}: .*standard queue"):
        with_(**{name: "https://sqs.eu-central-1.amazonaws.com/1/work.fifo"})


@pytest.mark.parametrize(
    ("misspelt", "nearest"),
    [
        ("HAULAGE_CONCURENCY", "HAULAGE_CONCURRENCY"),
        ("HAULAGE_LEASE_SECS", "HAULAGE_LEASE_SECONDS"),
        ("HAULAGE_ADMINKEY", "HAULAGE_ADMIN_KEY"),
        # The prefix does not make a setting of what has a name of its own.
        ("HAULAGE_DATABASE_URL", "DATABASE_URL"),
        ("HAULAGE_CONSUMER_MOD", "CONSUMER_MODE"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_nearest_known_one(misspelt: str, nearest: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        Settings.from_environment({"DATABASE_URL": "postgresql://h/n", misspelt: "1"})
    assert str(caught.value) == f"{misspelt}: is no setting of Haulage; the nearest is {nearest}"


@pytest.mark.parametrize("name", ["HAULAGE_NOPE", "HAULAGE_X", "HAULAGE_", "HAULAGE_MAX_ATTEMPTS"])
def test_a_name_that_is_like_no_other_is_refused_without_a_guess(name: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        Settings.from_environment({"DATABASE_URL": "postgresql://h/n", name: "1"})
    assert str(caught.value) == f"{name}: is no setting of Haulage"


def test_a_misspelt_name_is_told_together_with_values_that_do_not_fit() -> None:
    with pytest.raises(Misconfigured, match=r"HAULAGE_XQZ: is no .*; HAULAGE_LEASE_SECONDS: "):
        with_(xqz="1", lease_seconds="0")


def test_names_of_clients_and_of_the_local_stack_are_passed_over() -> None:
    with_(url="http://h", api_key="k", admin_key="k", local_port="1", local_anything="x")
