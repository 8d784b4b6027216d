"""The paper's tables, measured again beside the published numbers, and tests of its claims.

The paper is Carey & Wu, "Achieving Distributive Justice in Federated Learning via Uncertainty
Quantification", FAccT 2025. `published` has its numbers, `run` makes ours, `tables` puts them side
by side, `claims` has the paper's statements and `verdicts` tests them over seeds.
"""
