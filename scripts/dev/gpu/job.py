"""What a part of a check works with: where things are, until when, and where its outcomes go."""
import json
import time

import process


class Job:
    def __init__(self, setup, journal, part, deadline):
        self.setup, self.journal, self.part, self.deadline = setup, journal, part, deadline

    def log(self, name):
        return self.journal.logs / f"{self.part}-{name}.log"

    def call(self, command, name, on_line=None, seconds=None):
        """Runs a command; its exit code. Stopped at the part's deadline, or after `seconds`."""
        deadline = self.deadline
        if seconds is not None:
            deadline = min(deadline, time.monotonic() + seconds)
        return process.run(command, deadline, self.log(name), self.setup.environment,
                           self.setup.scratch, on_line)

    def must(self, command, name, **more):
        """The same; RuntimeError with the end of the log where it fails."""
        code = self.call(command, name, **more)
        if code != 0:
            raise RuntimeError(f"{name} ended with {code}: {self.tail(name)}")

    def tail(self, name, characters=500):
        log = self.log(name)
        return log.read_text(errors="replace")[-characters:] if log.exists() else "no output"

    def answer(self, words, name, before=()):
        """(exit code, the JSON that `longshore WORDS` prints, or None), for commands whose exit
        code says what they found. `before`: a program that runs it."""
        found = []
        code = self.call([*before, self.setup.bin / "longshore", *words], name,
                         on_line=found.append)
        text = "\n".join(found)
        try:
            return code, json.loads(text[text.index("{"):])
        except ValueError:
            return code, None

    def program_json(self, words, name, before=()):
        """That JSON of a command that ends with 0; RuntimeError with the end of its log otherwise.
        """
        code, printed = self.answer(words, name, before)
        if code != 0 or printed is None:
            raise RuntimeError(f"{name} ended with {code}: {self.tail(name)}")
        return printed

    def tell(self, test, outcome, seconds):
        self.journal.test(self.part, test, outcome, seconds)

    def known(self):
        """Outcomes of an earlier call."""
        return self.journal.tests(self.part)
