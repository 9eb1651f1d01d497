import pytest

from infra.database import Database
from infra.wakeup import Listener
from tests.deliveries import Delivery
from tests.platform import settings_for


@pytest.fixture
def delivery(database_url: str, database: Database) -> Delivery:
    """Delivery in one mode: what runs an input does not know which it is."""
    settings = settings_for(database_url)
    return Delivery("outbox", settings, database, Listener(settings, name="test"))
