"""Measurements of Sutler beside its peers: ``make bench BENCH="images --data PATH"``.

Peers and Sutler take turns in one run, on the same files, threads and transforms, since only ratios taken that way say
anything on a machine that does other work too. Nothing here is part of the product.
"""
