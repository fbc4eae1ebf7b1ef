// Choice of the inputs that measure a unit's memory, the fit to the samples, and the stored
// samples, without running a unit.
#include "offload/engine/probe/probe_inputs.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "offload/engine/probe/unit_probe.h"
#include "tests/nvme/scratch_file.h"

namespace longshore {
namespace {

constexpr double kFlops = 1e9;

UnitWork small_work() {
  return {.matrix_elements = 1000.0, .widest_carry = 8.0, .documents = {64, 16, 1}};
}

// The probe inputs are the run's own shape and smaller shapes of each kind.
TEST(ProbeInputs, AreTheRunsOwnShapeAndSmallerOnesOfEachKind) {
  const std::vector<ProbeInput> inputs = probe_inputs(small_work(), {256, 64}, kFlops);
  for (const int32_t kind : {0, 1, 2}) {
    int64_t most = 0, others = 0;
    for (const ProbeInput& input : inputs) {
      if (input.kind != kind) continue;
      EXPECT_EQ(input.trained, input.positions);
      EXPECT_LE(input.document, small_work().documents[static_cast<size_t>(kind)]);
      most = std::max(most, input.positions);
      others += input.positions < 256;
    }
    EXPECT_EQ(most, 256) << kind;
    EXPECT_GE(others, 2) << kind;
  }
}

// Inputs that would take too long are left out.
TEST(ProbeInputs, LeaveOutWhatTakesTooLong) {
  UnitWork work = small_work();
  work.matrix_elements = 1e8;
  for (const ProbeInput& input : probe_inputs(work, {65536, 65536}, kFlops)) {
    EXPECT_LE(input.positions, 256);
    EXPECT_GE(input.positions, 1);
  }
}

// With WholeShape::kAlways the run's own shape is measured however long it takes.
TEST(ProbeInputs, HaveTheRunsOwnShapeHoweverLongItTakesWhereItMustBeMeasured) {
  UnitWork work = small_work();
  work.matrix_elements = 1e8;
  const auto inputs = probe_inputs(work, {65536, 65536}, kFlops, WholeShape::kAlways);
  for (const int32_t kind : {0, 1, 2}) {
    const bool whole = std::ranges::any_of(inputs, [kind](const ProbeInput& input) {
      return input.kind == kind && input.positions == 65536 && input.trained == 65536;
    });
    EXPECT_TRUE(whole) << kind;
  }
}

// A run of one position has one probe input.
TEST(ProbeInputs, OfOnePositionAreOne) {
  EXPECT_EQ(probe_inputs({.matrix_elements = 10.0, .documents = {1}}, {1, 1}, kFlops),
            (std::vector<ProbeInput>{{0, 1, 1, 1}}));
}

// A chunked loss that would take too long whole is probed with one chunk.
TEST(ProbeInputs, OfALossAreOneChunk) {
  UnitWork work = {.matrix_elements = 1e7, .positions_at_once = 64, .documents = {4096}};
  for (const ProbeInput& input : probe_inputs(work, {4096, 4096}, kFlops)) {
    EXPECT_EQ(input.trained, 64);
  }
  const std::vector<ProbeInput> inputs = probe_inputs(work, {4096, 4096}, kFlops);
  EXPECT_EQ(inputs.front().positions, 64);
  EXPECT_EQ(inputs.back().positions, 4096);
  work.matrix_elements = 10.0;
  EXPECT_EQ(probe_inputs(work, {4096, 4096}, kFlops).back().trained, 4096);
}

// Returns the trace of a made-up unit, whose worst phase depends on the number of positions.
ProbeTrace taken(const ProbeInput& input) {
  const Bytes middle = 1000 * input.positions + 100 * input.document;
  const Bytes end = 500'000'000 + 10 * input.positions;
  return {
      .forward = 500 * input.positions, .saved = 700 * input.positions, .backward = {middle, end}};
}

std::vector<ProbeSample> sampled(const UnitWork& work, const MicroBatchShape& run, double flops) {
  std::vector<ProbeSample> samples;
  for (const ProbeInput& input : probe_inputs(work, run, flops)) {
    samples.push_back({input, taken(input)});
  }
  return samples;
}

// The fit finds the worst phase far beyond the measured shapes.
TEST(WorkspaceFit, FindsTheWorstPhaseFarBeyondWhatWasRun) {
  UnitWork work = small_work();
  work.matrix_elements = 1e8;
  const MicroBatchShape run{1'000'000, 1'000'000};
  work.documents = {run.longest_document, 16, 1};
  const WorkspaceFit fit(work, run, sampled(work, run, kFlops));
  const UnitCost cost = fit.at(run);
  EXPECT_EQ(cost.source, CostSource::kFitted);
  const Bytes truth = 1100 * run.positions;
  EXPECT_GE(cost.backward, truth);
  EXPECT_LE(static_cast<double>(cost.backward), 1.06 * static_cast<double>(truth) + kMiB);
  EXPECT_GE(cost.saved, 700 * run.positions);
  EXPECT_GE(cost.forward, 500 * run.positions);
}

// For the run's own shape the cost is the measured one.
TEST(WorkspaceFit, SaysWhatWasMeasuredForTheRunsOwnShape) {
  const UnitWork work = small_work();
  const MicroBatchShape run{256, 64};
  const WorkspaceFit fit(work, run, sampled(work, run, kFlops));
  const UnitCost cost = fit.at(run);
  EXPECT_EQ(cost.source, CostSource::kMeasured);
  EXPECT_GE(cost.backward, 500'002'560);
  EXPECT_LE(cost.backward, int64_t{500'002'560} * 103 / 100);
  // A smaller shape never costs more, and a larger one is not measured.
  const UnitCost less = fit.at({128, 64});
  EXPECT_LE(less.backward, cost.backward);
  EXPECT_GE(less.saved, 700 * 128);
  EXPECT_EQ(less.source, CostSource::kFitted);
  EXPECT_EQ(fit.at({512, 64}).source, CostSource::kFitted);
}

// The larger of two ranks' traces counts phase by phase, although they measured different shapes.
TEST(WorkspaceFit, TakesTheLargerOfTwoTraces) {
  const ProbeTrace both = larger_of({.forward = 1, .saved = 5, .backward = {3, 9}},
                                    {.forward = 2, .saved = 4, .backward = {4, 8}});
  EXPECT_EQ(both.forward, 2);
  EXPECT_EQ(both.saved, 5);
  EXPECT_EQ(both.backward, (std::vector<Bytes>{4, 9}));
  EXPECT_EQ(larger_of({.backward = {3, 9}}, {.backward = {10}}).backward, std::vector<Bytes>{10});
}

// Phases that do not correspond between shapes are fitted as one, no less than any of them.
TEST(WorkspaceFit, TakesPhasesThatDoNotCorrespondAsOne) {
  const UnitWork work{.matrix_elements = 1.0, .documents = {32}};
  std::vector<ProbeSample> samples = {{{0, 8, 8, 8}, {.backward = {100, 200}}},
                                      {{0, 16, 8, 16}, {.backward = {400}}}};
  EXPECT_GE(WorkspaceFit(work, {32, 32}, samples).at({32, 32}).backward, 800);
}

class KeptSamples : public testing::Test {
 protected:
  std::string file() const {
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      return entry.path();
    }
    return {};
  }
  const std::vector<ProbeSample> samples_ = sampled(small_work(), {256, 64}, kFlops);
  ScratchDirectory directory_;
  SampleCache cache_{directory_.path()};
};

// Stored samples are found for their key only.
TEST_F(KeptSamples, ComeBackForTheirKeyAlone) {
  EXPECT_FALSE(cache_.find("a"));
  cache_.keep("a", samples_);
  const auto found = cache_.find("a");
  ASSERT_TRUE(found);
  ASSERT_EQ(found->size(), samples_.size());
  for (size_t i = 0; i < samples_.size(); ++i) {
    EXPECT_EQ((*found)[i].input, samples_[i].input);
    EXPECT_EQ((*found)[i].trace.forward, samples_[i].trace.forward);
    EXPECT_EQ((*found)[i].trace.saved, samples_[i].trace.saved);
    EXPECT_EQ((*found)[i].trace.backward, samples_[i].trace.backward);
  }
  EXPECT_FALSE(cache_.find("b"));
  EXPECT_FALSE(samples_of_text(samples_to_text("a", samples_), "b"));
}

// A file of samples with any changed or missing byte is not used.
TEST_F(KeptSamples, AreNotBelievedWhenDamaged) {
  cache_.keep("a", samples_);
  const std::string path = file(), whole = read_whole_file(path, kMiB);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    const auto found = samples_of_text(changed, "a");
    if (i + 1 == whole.size()) break;  // the line's end carries no data
    EXPECT_FALSE(found) << i << " of " << whole;
    EXPECT_FALSE(samples_of_text(whole.substr(0, i), "a")) << i;
  }
  write_file_durably(path, "{}");
  EXPECT_FALSE(cache_.find("a"));
  cache_.keep("a", samples_);
  EXPECT_TRUE(cache_.find("a"));
}

// Samples that cannot be stored are dropped without an error.
TEST_F(KeptSamples, AreNotKeptWhereThereIsNoRoomAndThatIsNoError) {
  const SampleCache nowhere(""), refused("/proc/no/such");
  nowhere.keep("a", samples_);
  refused.keep("a", samples_);
  EXPECT_FALSE(nowhere.find("a"));
  EXPECT_FALSE(refused.find("a"));
}

}  // namespace
}  // namespace longshore
