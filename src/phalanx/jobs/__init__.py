"""`phalanx run`: it starts a program on ranks and watches them.

Modules import inside a function what most jobs never need, and what can wait until the zygote imports torch: the start
of a job is measured (benchmarks/first_collective).
"""
