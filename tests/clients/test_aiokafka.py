"""Aiokafka against the broker, over real sockets."""

from client_behaviour import ClientBehaviour

from support.aiokafka_client import Aiokafka


class TestAiokafka(ClientBehaviour):
    """What every client must see."""

    client = Aiokafka()
    # It does not know this number and shows the application UnknownError (-1).
    code_of_invalid_record = -1
