#!/usr/bin/env python3
"""Writes events_golden.tfevents: records as the tensorboard package writes them, for
event_file_test.cpp to compare bytes with (made with tensorboard 2.21.0). Needs that package:

    python make_events_golden.py
"""
import pathlib

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

SCALARS = {"train/loss": 1.5, "train/lr": 1e-5, "memory_bytes/host_rss": 98765432100.0,
           "train/grad_norm": float("nan"), "stall_seconds/h2d": 0.0}


def scalars(wall_time, step, values):
    summary = summary_pb2.Summary(
        value=[summary_pb2.Summary.Value(tag=tag, simple_value=value)
               for tag, value in values.items()])
    return event_pb2.Event(wall_time=wall_time, step=step, summary=summary)


def main():
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    events = [event_pb2.Event(wall_time=1.5, file_version="brain.Event:2"),
              event_pb2.Event(wall_time=1.75e9, step=301, session_log=start),
              scalars(1.75e9 + 0.125, 301, SCALARS),
              scalars(1.75e9 + 1, 2**40, {"eval/loss": -0.0}),
              scalars(1.75e9 + 2, 0, {})]
    with open(pathlib.Path(__file__).with_name("events_golden.tfevents"), "wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())
        writer.flush()


if __name__ == "__main__":
    main()
