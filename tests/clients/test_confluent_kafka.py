"""ConfluentKafka against the broker, over real sockets."""

from client_behaviour import ClientBehaviour

from support.confluent_client import ConfluentKafka


class TestConfluentKafka(ClientBehaviour):
    """What every client must see."""

    client = ConfluentKafka()
