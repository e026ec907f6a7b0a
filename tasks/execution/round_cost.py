"""The cost of a round: seconds, bytes and optimizer steps, counted from the messages of its tasks."""

from dataclasses import dataclass, field
from typing import Any

from silos.cohort import Silos
from tasks.messages.message_policy import Message, check_few


@dataclass
class RoundCost:
    """The cost of a round's tasks.

    Attributes:
        seconds: Task name to the seconds inside the task; of cohorts that run at the same time the longest counts.
        bytes_up: From all clients together to the server.
        bytes_down: From the server to all clients together.
        steps: Client to the optimizer steps that its weights made, also where the server made them for the client.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    steps: dict[str, int] = field(default_factory=dict)

    def add_steps(self, client: str, steps: int) -> None:
        """Add optimizer steps of a client's weights."""
        self.steps[client] = self.steps.get(client, 0) + steps

    def count(self, task_name: str, bytes_down: int, answers: list[list[Any]], silos: Silos) -> list[Any]:
        """Check and count the messages of a task, and return them in one list.

        Bytes of pooled clients are not counted: their rows are in one place, and no weights travel.

        Args:
            task_name: For the seconds, and for errors.
            bytes_down: The size of the model that each client received for the task.
            answers: The messages of each cohort.
            silos: The clients that the task ran for.

        Raises:
            TypeError: If the task returns something other than messages, or messages of other clients.
        """
        messages: list[Any] = [message for cohort in answers for message in cohort]
        wrong = [type(message).__name__ for message in messages if not isinstance(message, Message)]
        wrong += ["nothing" for cohort in answers if not cohort]
        if wrong:
            raise TypeError(f"{task_name}: got {wrong[0]} from a client step, expected messages")
        check_few(messages)
        strangers = {client for message in messages for client in message.clients} - {*silos.clients}
        if strangers:
            raise TypeError(f"{task_name}: got a message of {min(strangers)!r}, expected one of a sampled client")
        seconds = max(cohort[0].seconds for cohort in answers)
        self.seconds[task_name] = self.seconds.get(task_name, 0.0) + seconds
        for message in (m for m in messages if m.travels and not silos.pooled):
            self.bytes_up += message.bytes_up
            self.bytes_down += len(message.clients) * bytes_down if message.with_model else 0
        return messages
