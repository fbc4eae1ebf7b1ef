// Schedules of the learning rate in files of the other trainers.
#include "tests/trainer/other_files.h"

namespace longshore {
namespace {

using Name = ScheduleSection::Name;

class OtherSchedules : public OtherFiles {
 protected:
  static std::string with(const std::string& keys) {
    return "base_model: m\ndatasets: [{path: own.jsonl, type: chat_template}]\n"
           "learning_rate: 1e-4\n" +
           keys + "\n";
  }
  ScheduleSection schedule(const std::string& keys) { return config_of(with(keys)).schedule; }
};

// Goal: schedules of transformers and their options become those of the run file, with the values
// that transformers takes where the file leaves an option out.
TEST_F(OtherSchedules, OfTransformersAreConverted) {
  EXPECT_EQ(
      schedule("lr_scheduler: cosine_with_restarts\nlr_scheduler_kwargs: {num_cycles: 3}\n"
               "warmup_steps: 7"),
      (ScheduleSection{
          .name = Name::kCosineWithRestarts, .warmup_steps = 7, .min_lr_ratio = 0.0, .cycles = 3}));
  const ScheduleSection polynomial =
      schedule("lr_scheduler: polynomial\nlr_scheduler_kwargs: {power: 2, lr_end: 1e-5}");
  EXPECT_EQ(polynomial.name, Name::kPolynomial);
  EXPECT_EQ(polynomial.power, 2.0);
  EXPECT_NEAR(polynomial.min_lr_ratio, 0.1, 1e-12);
  EXPECT_NEAR(schedule("lr_scheduler: polynomial").min_lr_ratio, 1e-3, 1e-12);
  const ScheduleSection root =
      schedule("lr_scheduler: inverse_sqrt\nlr_scheduler_kwargs: {timescale: 100}");
  EXPECT_EQ(root.name, Name::kInverseSqrt);
  EXPECT_EQ(root.timescale, 100);
  const ScheduleSection wsd = schedule(
      "lr_scheduler: warmup_stable_decay\n"
      "lr_scheduler_kwargs: {num_decay_steps: 9, min_lr_ratio: 0.2}");
  EXPECT_EQ(wsd.name, Name::kWsd);
  EXPECT_EQ(wsd.decay_steps, 9);
  EXPECT_EQ(wsd.min_lr_ratio, 0.2);
  EXPECT_EQ(wsd.decay_type, ScheduleSection::Decay::kCosine);
  const ScheduleSection roots = schedule(
      "lr_scheduler: warmup_stable_decay\n"
      "lr_scheduler_kwargs: {num_decay_steps: 9, decay_type: 1-sqrt}");
  EXPECT_EQ(roots.decay_type, ScheduleSection::Decay::kOneMinusSqrt);
  EXPECT_EQ(roots.min_lr_ratio, 0.0);
}

// Goal: an option that the run file cannot say is refused, and names of schedules are listed.
TEST_F(OtherSchedules, AreRefusedWhereTheRunFileCannotSayThem) {
  const std::string part = refusal_of(
      with("lr_scheduler: cosine_with_restarts\nlr_scheduler_kwargs: {num_cycles: 1.5}"));
  EXPECT_TRUE(has(part, "lr_scheduler_kwargs.num_cycles: expected an integer")) << part;
  const std::string decay =
      refusal_of(with("lr_scheduler: warmup_stable_decay\n"
                      "lr_scheduler_kwargs: {num_decay_steps: 9, decay_type: steep}"));
  EXPECT_TRUE(has(decay, "lr_scheduler_kwargs.decay_type: expected one of linear, cosine, 1-sqrt"))
      << decay;
  const std::string unknown = refusal_of(with("lr_scheduler: greedy"));
  EXPECT_TRUE(has(unknown, "lr_scheduler = greedy: expected one of constant, ")) << unknown;
}

}  // namespace
}  // namespace longshore
