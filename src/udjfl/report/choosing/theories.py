"""The four theories, each in the same few sentences: aim, gain, price, for and against."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Theory:
    """A theory of distributive justice as udjfl pursues it.

    aim                 what it asks of the model
    measure             how a comparison tells whether it was delivered
    gains, pays         the clients that gain by it, and those that pay
    argument            the case for it
    objection           the case against it
    uses_uncertainty    what it does with uncertainties, with a budget
    """

    name: str
    title: str
    aim: str
    measure: str
    gains: str
    pays: str
    argument: str
    objection: str
    uses_uncertainty: str

    @property
    def facts(self) -> dict[str, str]:
        """The texts by heading."""
        return {
            "Aim": self.aim,
            "Gains": self.gains,
            "Pays": self.pays,
            "For it": self.argument,
            "Against it": self.objection,
            "Measured by": self.measure,
            "Use of uncertainties": self.uses_uncertainty,
        }


THEORIES = {
    theory.name: theory
    for theory in (
        Theory(
            "rawls",
            "Rawls' difference principle",
            "Make the least advantaged client as well off as the budget allows.",
            "How much more that client gains against FedAvg than the others do (Psi), in two "
            "numbers: its gain, and theirs.",
            "The client with the most uncertain data; of more than 20 clients, the most uncertain "
            "tenth.",
            "All others, a little each; most of all those whose data are least like that client's.",
            "No one chose to be the worst off, and the others can bear a small loss more easily.",
            "It looks at one place only: losses of everybody else count for nothing until the "
            "budget stops them, and the one that is helped may not be the one that needs it.",
            "It decides by them who is helped. `advantage=fedavg` decides by the lowest score "
            "under FedAvg instead.",
        ),
        Theory(
            "egalitarian",
            "Strict egalitarianism",
            "Serve all clients equally well, as far as the budget allows.",
            "The spread of the clients' accuracies (STD), without the part of it that is test "
            "noise.",
            "The clients below the mean.",
            "The clients above the mean.",
            "A person's service should not depend on which client serves them.",
            "Equality can be had by making everybody worse off. A gap that closes because the top "
            "falls is called levelled down here, not delivered.",
            "None with a budget: it goes by scores alone.",
        ),
        Theory(
            "utilitarian",
            "Utilitarianism",
            "Make the shared model as good as possible on the whole.",
            "Accuracy on a shared test set that belongs to no client; where there is none, the "
            "mean accuracy.",
            "The clients whose data are like the clear data of the shared test set.",
            "The clients with the most uncertain data: their examples count least.",
            "The largest total good, and data that say little should not steer the model.",
            "A total does not ask who has it. A client can be given up for a fraction of a point "
            "elsewhere.",
            "It weights clients by 1/u: a client that claims low uncertainty gains influence.",
        ),
        Theory(
            "desert",
            "Desert",
            "Let accuracy follow the quality of the data that a client brings.",
            "The slope of accuracy over uncertainty: how much a client has for clearer data.",
            "The clients with the least uncertain data.",
            "The clients with the most uncertain data; often one client bears nearly all of it.",
            "Those who took care should have more of what came of it, and care is encouraged.",
            "Uncertain data are often bad luck or poverty and not lack of care, and the people "
            "whom the model serves did not choose the scanner.",
            "It weights clients by 1/u squared: a client that claims low uncertainty gains a lot "
            "of influence.",
        ),
    )
}
