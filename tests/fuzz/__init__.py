"""Files and messages as no honest program writes them: made from real ones by `mutations`, read by `formats`.

    python -m tests.fuzz.run --count 100000

reads so many; `test_fuzz.py` a sample.
"""
