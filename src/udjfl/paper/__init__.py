"""The paper's tables, measured again: its numbers beside ours, and which of its sentences ours bear out.

The paper is Carey & Wu, "Achieving Distributive Justice in Federated Learning via Uncertainty Quantification", FAccT 2025.
`published` has its numbers, `table` puts ours beside them, `claims` has its sentences, `verdicts` tests them over seeds.
"""
