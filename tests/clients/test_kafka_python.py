"""KafkaPython against the broker, over real sockets."""

from client_behaviour import ClientBehaviour

from support.kafka_python_client import KafkaPython


class TestKafkaPython(ClientBehaviour):
    """What every client must see."""

    client = KafkaPython()
    sends_null_headers = False
