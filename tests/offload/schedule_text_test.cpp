// A schedule as a table and as a picture.
#include "offload/schedule/schedule_simulation.h"

#include <gtest/gtest.h>

#include "tests/offload/schedule_cases.h"

namespace longshore {
namespace {

// Goal: the text that ranks compare has every collective of every pass in order of issue.
TEST(ScheduleText, DescribesCollectives) {
  const ScheduleCase options{.blocks = 1, .frozen = {0}, .prefetch = 0, .ordered = true};
  const ModelSpec model = make_case_model(options);
  PassSchedules schedules;
  schedules.train = build_schedule(make_case_inputs(options, model));
  EXPECT_EQ(describe_collectives(schedules),
            "train: gather unit 0\ntrain: gather unit 1\ntrain: gather unit 2\n"
            "train: reduce unit 2\ntrain: gather unit 1\ntrain: reduce unit 1\n");
  schedules.forward = std::move(schedules.train);
  schedules.train = {};
  EXPECT_TRUE(describe_collectives(schedules).starts_with("forward: gather unit 0\n"));
}

// Every operation is a line with its lane, unit, slots, waits and bytes.
TEST(ScheduleText, PrintsAnOperationALine) {
  const ScheduleCase options{.blocks = 1, .frozen = {0}, .prefetch = 1, .several_ranks = false};
  const ModelSpec model = make_case_model(options);
  ScheduleInputs inputs = make_case_inputs(options, model);
  inputs.bytes_of(OpKind::kFetch) = {1024, 2048, 4096};
  EXPECT_EQ("\n" + print_schedule(build_schedule(inputs), model), R"(
op  lane     operation  unit       uses                after    bytes
 0  h2d      fetch      embedding  slot 0                     1.0 KiB
 1  update   update     block.0
 2  h2d      fetch      block.0    slot 1              1      2.0 KiB
 3  compute  forward    embedding  slot 0              0
 4  update   update     head
 5  h2d      fetch      head       slot 0              3 4    4.0 KiB
 6  compute  forward    block.0    slot 1              2
 7  compute  backward   head       slot 0, gradient 0  5
 8  d2h      drain      head       gradient 0          7
 9  compute  backward   block.0    slot 1, gradient 1
10  d2h      drain      block.0    gradient 1          9
)");
}

// Goal: every lane with operations is a row, and every operation a bar of its length.
TEST(ScheduleText, DrawsLanesOverTime) {
  const ScheduleCase options{.blocks = 1, .frozen = {}, .several_ranks = false};
  const ModelSpec model = make_case_model(options);
  const StepSchedule schedule = build_schedule(make_case_inputs(options, model));
  const std::vector<double> seconds(schedule.ops.size(), 1.0);
  const SimulatedPass pass = simulate_schedule(schedule, seconds);
  const std::string svg = draw_schedule(schedule, model, pass);
  const auto count = [&](const std::string& part) {
    size_t found = 0;
    for (size_t i = svg.find(part); i != std::string::npos; i = svg.find(part, i + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("<title>"), schedule.ops.size());
  for (const char* lane : {">update<", ">h2d<", ">compute<", ">d2h<"}) EXPECT_EQ(count(lane), 1U);
  EXPECT_EQ(count(">gather<") + count(">reduce<"), 0U);
  EXPECT_EQ(count("<title>0 update embedding</title>"), 1U);
  EXPECT_EQ(count(">time, from left to right; a number is a unit, a frame is backward<"), 1U);
  EXPECT_EQ(svg.find("<svg "), 0U);
  EXPECT_EQ(count("</svg>"), 1U);
}

}  // namespace
}  // namespace longshore
