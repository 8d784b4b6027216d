"""An app for tests: all clients are honest but one, which fails as the run's configuration says.

faulty    the id of that client
faults    its faults in rounds 1, 2, ..., separated by commas; empty: honest in that round
          (nan, shape, huge, id: a wrong reply; error: an exception; hang: no reply; wait: a reply
          once the file `release-t` exists)
gates     a folder. Before round t the server waits while the file `closed-t` exists, and creates
          `waiting-t`; a client that hangs or waits in round t creates `hanging-t`
snapshots a folder that receives the server's model after every round
pace      seconds that a round takes at least
"""
