"""The study of `siloflow advise`: strategies that choose a method, replayed from runs on federations that none has seen."""
