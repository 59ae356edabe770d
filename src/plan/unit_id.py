# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which unit of which model, where one machine may meet several. Frozen types only."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class UnitId:
    """A unit as the machine's record of its owner has it.

    Attributes:
        name: Juju's, such as `worker/0`.
        model: the name of its model; empty if unknown.
        model_uuid: the model's UUID; empty if unknown.
        agent: the folder of its agent, which Juju removes with the unit, forced or not (4.0.15
            internal/worker/deployer/nested.go, RecallUnit); empty for a unit that is gone.
    """

    name: str
    model: str
    model_uuid: str
    agent: str

    def is_same(self, other: "UnitId") -> bool:
        """Whether both are one unit of one model."""
        return (self.name, self.model_uuid) == (other.name, other.model_uuid)

    def __str__(self) -> str:
        """As the operator reads it."""
        return f"{self.name} of model {self.model}" if self.model else self.name
