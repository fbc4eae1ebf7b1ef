// Checkpoints restore the same state over state formats, rank counts and units.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>

#include "base/errors.h"
#include "base/file.h"
#include "base/number_formats.h"
#include "hf/safetensors_reader.h"
#include "tests/trainer/checkpoint_fixture.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_moments.h"

namespace longshore {
namespace {

constexpr StateOptions kFp32{StateFormat::kFp32, DType::kBF16, DType::kBF16};
constexpr StateOptions kSplit{StateFormat::kSplit, DType::kBF16, DType::kBF16};
constexpr StateOptions kSplitBf16{StateFormat::kSplitBf16, DType::kBF16, DType::kBF16};
constexpr StateOptions kSplitInt8{StateFormat::kSplitInt8, DType::kBF16, DType::kBF16};
constexpr StateOptions kFp32ForFp32{StateFormat::kFp32, DType::kF32, DType::kF32};
constexpr StateOptions kSplitForFp32{StateFormat::kSplit, DType::kF32, DType::kF32};

class CheckpointTest : public ::testing::Test {
 protected:
  Checkpoint found() {
    FoundCheckpoint found = find_checkpoint(folder_, "auto");
    EXPECT_TRUE(found.checkpoint.has_value());
    EXPECT_TRUE(found.refused.empty());
    return std::move(*found.checkpoint);
  }

  // Saves a checkpoint of several ranks together; returns its path.
  std::string save_ranks(const ModelSpec& spec, int32_t ranks, int64_t step) {
    CheckpointWriter writer(folder_, Step(step));
    CheckpointManifest manifest;
    manifest.progress = progress_at(step);
    manifest.state_format = "split";
    for (int32_t rank = 0; rank < ranks; ++rank) {
      RankState state(spec, kSplit, ranks, rank);
      state.fill();
      manifest.files.push_back(write_state_file(writer.directory(), state.model(), state.sweep()));
    }
    manifest.parameters = trainable_parameters(spec);
    return writer.commit(manifest);
  }

  const TemporaryDirectory directory_;
  const std::string folder_ = directory_.file("checkpoints");
};

// A checkpoint of any exact format restores the same bits into any exact format.
TEST_F(CheckpointTest, RestoresTheSameBitsFromAnyFormatIntoAnyFormat) {
  const std::vector<StateOptions> all = {kFp32, kSplit, kFp32ForFp32, kSplitForFp32};
  for (const StateOptions& from : all) {
    RankState writer(three_unit_spec(), from);
    writer.fill();
    save(folder_, writer, 5);
    for (const StateOptions& to : all) {
      RankState reader(three_unit_spec(), to);
      reader.fill(/*version=*/9);
      found().restore(reader.model(), reader.sweep());
      EXPECT_TRUE(reader.differences().empty()) << name_of(from.format) << name_of(to.format);
    }
  }
}

// Returns all bytes of a unit's state.
std::vector<std::byte> bytes_of_state(RankState& state) {
  std::vector<std::byte> bytes;
  const auto add = [&](std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  };
  for (const UnitSpec& unit : state.spec().units) {
    const auto lease = state.store().state(unit.id);
    for (const Segment segment : {Segment::kQuantisedMoments, Segment::kFullMoments}) {
      const StateSpans spans = lease->segment(segment);
      for (const auto& half : {spans.high, spans.low}) add(std::as_bytes(half));
      for (const MomentSpan& moment : spans.regions) {
        add(moment.values);
        add(std::as_bytes(moment.units));
      }
    }
  }
  return bytes;
}

// Sets values like moments: of many magnitudes, the second never negative.
void fill_moments(RankState& state) {
  state.visit([](const ParamSpec& parameter, const ShardPiece& piece, const StateSpans& spans) {
    if (parameter.frozen) return;
    std::vector<float> first(static_cast<size_t>(piece.elements));
    for (size_t i = 0; i < first.size(); ++i) {
      const int64_t element = piece.parameter_begin + static_cast<int64_t>(i);
      first[i] = static_cast<float>(element * 7919 % 2003 - 1001) *
                 std::ldexp(1.0f, -static_cast<int>(element % 17));
    }
    write_moments(Moment::kFirst, spans.regions[0], piece.shard_begin, first);
    for (float& value : first) value *= value;
    write_moments(Moment::kSecond, spans.regions[1], piece.shard_begin, first);
  });
}

// Writes the checkpoint of step 4 of several ranks, each with the state of `fill`; the manifest
// leaves out the file of rank `without`.
void write_ranks(const std::string& folder, const ModelSpec& spec, const StateOptions& options,
                 int32_t ranks, const std::function<void(RankState&)>& fill, int32_t without = -1) {
  CheckpointManifest manifest;
  manifest.progress = progress_at(4);
  manifest.state_format = name_of(options.format);
  manifest.parameters = trainable_parameters(spec);
  CheckpointWriter writer(folder, Step(4));
  for (int32_t rank = 0; rank < ranks; ++rank) {
    RankState state(spec, options, ranks, rank);
    fill(state);
    const CheckpointFile file = write_state_file(writer.directory(), state.model(), state.sweep());
    if (rank != without) manifest.files.push_back(file);
  }
  writer.commit(manifest);
}

// Goal: narrow moments come back with the same bits and bytes, whatever the ranks and units.
TEST_F(CheckpointTest, NarrowMomentsAreNeverRoundedAgain) {
  for (const StateOptions& options : {kSplitBf16, kSplitInt8}) {
    for (const int32_t ranks : {1, 3}) {
      write_ranks(folder_, three_unit_spec(), options, ranks, [](RankState& state) {
        state.fill_masters();
        fill_moments(state);
      });
      for (const ModelSpec& spec : {three_unit_spec(), two_unit_spec()}) {
        RankState wanted(spec, options);
        wanted.fill_masters();
        fill_moments(wanted);
        RankState reader(spec, options);
        found().restore(reader.model(), reader.sweep());
        EXPECT_EQ(bytes_of_state(reader), bytes_of_state(wanted)) << ranks << " ranks";
      }
    }
  }
}

// Goal: values that no rank's file has are an error, not zeros.
TEST_F(CheckpointTest, AGapBetweenTheRanksPartsIsRefused) {
  ModelSpec spec;
  spec.units = {unit(0, {parameter("whole.weight", {96, 64})})};
  const auto fill = [](RankState& state) { state.fill_masters(); };
  const std::string path = folder_ + "/" + checkpoint_name(Step(4));
  for (const int32_t without : {0, 1, 2}) {
    write_ranks(folder_, spec, kSplit, 3, fill, without);
    try {
      Checkpoint::open(path);
      ADD_FAILURE() << "without rank " << without;
    } catch (const CheckpointError& error) {
      const std::string where = "once from element " + std::to_string(without * 2048);
      EXPECT_NE(std::string(error.what()).find(where), std::string::npos) << error.what();
    }
  }
  write_ranks(folder_, spec, kSplit, 3, fill);
  Checkpoint::open(path);
}

// Returns half a step of the format's codes at a second moment: at most 2^-8 of it for bf16; for 8
// bits a 32nd of it and, as codes are linear near 0 and never 0, 2^-19 of the largest in its block.
float rounding_bound(StateFormat to, const std::vector<float>& moments, size_t i) {
  if (to == StateFormat::kSplitBf16) return moments[i] * 0x1p-8f * 1.01f;
  const size_t first = i / kMomentBlockElements * kMomentBlockElements;
  const size_t last = std::min(first + size_t{kMomentBlockElements}, moments.size());
  const float largest = *std::max_element(moments.begin() + static_cast<int64_t>(first),
                                          moments.begin() + static_cast<int64_t>(last));
  return (moments[i] / 32.0f + 0x1p-19f * largest) * 1.01f;
}

// Returns matrices of more than two chunks of 2^20 elements and of slightly more than one, behind a
// parameter that shifts both.
ModelSpec spec_of_large_matrices() {
  ModelSpec spec;
  spec.units = {
      unit(0, {parameter("shift.weight", {31, 17}), parameter("long.weight", {2099, 1013}),
               parameter("wide.weight", {1023, 1031}), parameter("norm.weight", {24})})};
  return spec;
}

// Goal: every chunk of a large matrix is written, checked, restored and read, in every format, also
// where a rank's piece begins inside a parameter.
TEST_F(CheckpointTest, HoldsMatricesOfSeveralChunks) {
  for (const StateOptions& options : {kFp32, kSplit, kSplitBf16, kSplitInt8}) {
    const bool narrow = options.format >= StateFormat::kSplitBf16;
    for (const int32_t ranks : {1, 2}) {
      const auto fill = [narrow](RankState& state) {
        if (narrow) {
          state.fill_masters();
          fill_moments(state);
        } else {
          state.fill();
        }
      };
      write_ranks(folder_, spec_of_large_matrices(), options, ranks, fill);
      RankState wanted(spec_of_large_matrices(), options),
          reader(spec_of_large_matrices(), options);
      fill(wanted);
      found().restore(reader.model(), reader.sweep());
      EXPECT_TRUE(bytes_of_state(reader) == bytes_of_state(wanted))
          << name_of(options.format) << " " << ranks << " ranks";
    }
  }
}

// Goal: a wider format on resume is exact; a narrower one rounds once and is announced.
TEST_F(CheckpointTest, WidensMomentsExactlyAndAnnouncesThatItRounds) {
  const std::vector<StateOptions> all = {kFp32, kSplitBf16, kSplitInt8};
  for (const StateOptions& from : all) {
    RankState writer(three_unit_spec(), from);
    writer.fill_masters();
    fill_moments(writer);
    save(folder_, writer, 5);
    for (const StateOptions& to : all) {
      RankState reader(three_unit_spec(), to);
      const Checkpoint checkpoint = found();
      checkpoint.restore(reader.model(), reader.sweep());
      RankState wide(three_unit_spec(), kFp32);
      checkpoint.restore(wide.model(), wide.sweep());
      const bool same = from.format == to.format;
      const bool exact = same || to.format == StateFormat::kFp32;
      EXPECT_EQ(describe_rounding(checkpoint.manifest(), to.format).empty(), exact);
      std::vector<float> stored(90 * 71);
      checkpoint.read("up.weight", "exp_avg_sq", 0, stored);
      const ShardPiece piece = reader.model().layout(UnitId(1)).trained_pieces(Rank(0)).front();
      std::vector<float> got(stored.size());
      read_moments(Moment::kSecond,
                   reader.store().state(UnitId(1))->segment(piece.segment).regions[1],
                   piece.shard_begin, got);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], stored[i], exact ? 0.0f : rounding_bound(to.format, stored, i)) << i;
      }
    }
  }
}

// A checkpoint keeps the run's step, data position and other facts.
TEST_F(CheckpointTest, KeepsWhatTheRunMustKnow) {
  RankState state(three_unit_spec(), kSplit);
  save(folder_, state, 5);
  const Checkpoint checkpoint = found();
  const RunProgress& progress = checkpoint.manifest().progress;
  const RunProgress wanted = progress_at(5);
  EXPECT_EQ(progress.step, Step(5));
  EXPECT_EQ(progress.adam_step, 4);
  EXPECT_EQ(progress.skipped_total, 1);
  EXPECT_EQ(progress.skipped_in_row, 0);
  EXPECT_EQ(progress.seed, 42u);
  EXPECT_EQ(progress.data, wanted.data);
  EXPECT_EQ(progress.model_fingerprint, wanted.model_fingerprint);
  EXPECT_EQ(progress.config_text, wanted.config_text);
  EXPECT_EQ(corrections_text(progress.router_corrections),
            corrections_text(wanted.router_corrections))
      << "to the bit";
  EXPECT_EQ(checkpoint.manifest().state_format, "split");
}

// Any other number of ranks reads a checkpoint.
TEST_F(CheckpointTest, AnotherNumberOfRanksReadsIt) {
  for (const int32_t from : {1, 2, 3, 5}) {
    save_ranks(three_unit_spec(), from, 7);
    for (const int32_t to : {1, 3, 4}) {
      for (int32_t rank = 0; rank < to; ++rank) {
        RankState reader(three_unit_spec(), kFp32, to, rank);
        found().restore(reader.model(), reader.sweep());
        EXPECT_TRUE(reader.differences().empty()) << from << " -> " << to << " rank " << rank;
      }
    }
  }
}

// A model with other units reads a checkpoint.
TEST_F(CheckpointTest, OtherUnitsReadIt) {
  save_ranks(three_unit_spec(), 3, 7);
  RankState reader(two_unit_spec(), kSplit);
  found().restore(reader.model(), reader.sweep());
  EXPECT_TRUE(reader.differences().empty());

  save_ranks(two_unit_spec(), 2, 8);
  RankState back(three_unit_spec(), kFp32ForFp32);
  found().restore(back.model(), back.sweep());
  EXPECT_TRUE(back.differences().empty());
}

// Restoring clears padding and keeps frozen parameters.
TEST_F(CheckpointTest, RestoreClearsPaddingAndLeavesFrozenParametersAlone) {
  RankState writer(three_unit_spec(), kSplit);
  writer.fill();
  save(folder_, writer, 1);
  RankState reader(three_unit_spec(), kSplit);
  std::vector<uint16_t> frozen;
  for (const UnitSpec& unit : reader.spec().units) {
    const auto lease = reader.store().state(unit.id);
    for (const Segment segment : kSegments) {
      const StateSpans state = lease->segment(segment);
      std::ranges::fill(state.high, uint16_t{0x3f80});
      std::ranges::fill(state.frozen, std::byte{0x3f});
      std::ranges::fill(state.regions[0].f32(), 7.0f);
      std::ranges::fill(state.regions[1].f32(), 7.0f);
    }
  }
  found().restore(reader.model(), reader.sweep());
  for (const UnitSpec& unit : reader.spec().units) {
    const auto lease = reader.store().state(unit.id);
    EXPECT_TRUE(std::ranges::all_of(lease->segment(Segment::kFrozen).frozen,
                                    [](std::byte byte) { return byte == std::byte{0x3f}; }));
    for (const Segment segment : {Segment::kQuantisedMoments, Segment::kFullMoments}) {
      const StateSpans state = lease->segment(segment);
      for (const MomentSpan& moments : state.regions) {
        EXPECT_TRUE(std::ranges::none_of(moments.f32(), [](float m) { return m == 7.0f; }));
      }
    }
  }
}

// Whole parameters are stored in their shape, and pieces as ranges of elements.
TEST_F(CheckpointTest, StoresWholeParametersInTheirShapeAndPiecesByTheirElements) {
  save_ranks(three_unit_spec(), 1, 1);
  const auto whole =
      SafetensorsFile::open(folder_ + "/step-00000001/state-00000-of-00001.safetensors");
  EXPECT_EQ(whole.tensor("up.weight.master").shape, (std::vector<int64_t>{90, 71}));
  EXPECT_EQ(whole.tensor("up.bias.exp_avg_sq").shape, (std::vector<int64_t>{90}));
  EXPECT_EQ(whole.find("fixed.weight.master"), nullptr);

  save_ranks(three_unit_spec(), 2, 2);
  const auto part =
      SafetensorsFile::open(folder_ + "/step-00000002/state-00001-of-00002.safetensors");
  // Two ranks share align_up(257 * 24, 512) = 6656 elements, so rank 1's begin at 3328.
  EXPECT_EQ(part.tensor("embed.weight.exp_avg[3328:6168]").shape, (std::vector<int64_t>{2840}));
}

// Any range of a parameter can be read for an export.
TEST_F(CheckpointTest, ReadsRangesOfAParameterForExport) {
  save_ranks(three_unit_spec(), 3, 1);
  const Checkpoint checkpoint = found();
  for (const auto& [begin, elements] :
       {std::pair<int64_t, size_t>{0, 6168}, {1, 5000}, {6167, 1}}) {
    std::vector<float> values(elements);
    checkpoint.read("embed.weight", kMasterKind, begin, values);
    for (size_t i = 0; i < elements; ++i) {
      const float wanted = state_bits("embed.weight", 0, begin + static_cast<int64_t>(i), 0);
      ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(wanted));
    }
  }
}

// All differences between checkpoint and model are reported together.
TEST_F(CheckpointTest, ReportsEveryDifferenceToTheModel) {
  save_ranks(three_unit_spec(), 1, 1);
  ModelSpec other = three_unit_spec();
  other.units[0].parameters[0].shape = {256, 24};
  other.units[1].parameters[1].frozen = true;
  other.units[2].parameters.push_back(parameter("head.bias", {257}));
  RankState reader(other, kSplit);
  reader.fill(3);
  try {
    found().restore(reader.model(), reader.sweep());
    FAIL();
  } catch (const CheckpointError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'embed.weight' has shape [256, 24], in the checkpoint [257, 24]"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("'up.weight' is in the checkpoint and not trained now"), std::string::npos);
    EXPECT_NE(text.find("'head.bias' is trained now and not in the checkpoint"), std::string::npos);
  }
  EXPECT_TRUE(reader.differences(3).empty()) << "nothing may be applied";
}

// Goal: adapters of another rank are one line with both ranks, not a line for each matrix.
TEST_F(CheckpointTest, NamesBothRanksOfAdapters) {
  const auto adapted = [](int64_t rank) {
    ModelSpec spec = three_unit_spec();
    for (UnitSpec& unit : spec.units) {
      for (ParamSpec& parameter : unit.parameters) parameter.frozen = true;
      unit.parameters.push_back(parameter(unit.name + ".up_proj.lora_A.weight", {rank, 24}));
      unit.parameters.back().adapter = true;
      unit.parameters.push_back(parameter(unit.name + ".up_proj.lora_B.weight", {40, rank}));
      unit.parameters.back().adapter = true;
    }
    return spec;
  };
  save_ranks(adapted(16), 1, 1);
  EXPECT_EQ(found().mismatches(adapted(16)), std::vector<std::string>());
  EXPECT_EQ(found().mismatches(adapted(8)),
            std::vector<std::string>{"adapter.r is 8, the checkpoint has 16"});
}

// Goal: of many differences three are named, and the others are counted.
TEST_F(CheckpointTest, NamesThreeOfManyDifferences) {
  save_ranks(three_unit_spec(), 1, 1);
  ModelSpec other = three_unit_spec();
  for (int i = 0; i < 7; ++i) {
    other.units[0].parameters.push_back(parameter("new." + std::to_string(i), {4}));
  }
  RankState reader(other, kSplit);
  try {
    found().restore(reader.model(), reader.sweep());
    FAIL();
  } catch (const CheckpointError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'new.2' is trained now"), std::string::npos) << text;
    EXPECT_EQ(text.find("'new.3'"), std::string::npos) << text;
    EXPECT_NE(text.find("and 4 more"), std::string::npos) << text;
  }
}

// A checkpoint replaces one of the same step.
TEST_F(CheckpointTest, ReplacesACheckpointOfTheSameStep) {
  RankState state(three_unit_spec(), kSplit);
  state.fill(1);
  save(folder_, state, 4);
  state.fill(2);
  save(folder_, state, 4);
  RankState reader(three_unit_spec(), kSplit);
  found().restore(reader.model(), reader.sweep());
  EXPECT_TRUE(reader.differences(2).empty());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

// Only the newest checkpoints are kept.
TEST_F(CheckpointTest, KeepsTheNewestFew) {
  RankState state(three_unit_spec(), kSplit);
  for (int64_t step = 1; step <= 5; ++step) save(folder_, state, step, /*keep=*/2);
  const auto left = list_checkpoints(folder_);
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].step, Step(5));
  EXPECT_EQ(left[1].step, Step(4));
}

// checkpoint.resume may be "auto", "never" or a directory.
TEST_F(CheckpointTest, ResumeIsAutoNeverOrADirectory) {
  EXPECT_FALSE(find_checkpoint(folder_, "auto").checkpoint.has_value());
  RankState state(three_unit_spec(), kSplit);
  const std::string old = save(folder_, state, 1).path;
  save(folder_, state, 2);
  EXPECT_FALSE(find_checkpoint(folder_, "never").checkpoint.has_value());
  EXPECT_EQ(find_checkpoint(folder_, "auto").checkpoint->manifest().progress.step, Step(2));
  EXPECT_EQ(find_checkpoint(folder_, old).checkpoint->manifest().progress.step, Step(1));
  EXPECT_THROW(find_checkpoint(folder_, folder_ + "/step-00000003"), CheckpointError);
  try {
    find_checkpoint(folder_, directory_.path());
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("step-00000002"), std::string::npos) << error.what();
  }
}

// On a full disk (a limit on file size, which makes the reservation fail) the older checkpoint
// stays, and no partial one remains.
TEST_F(CheckpointTest, AFullDiskLeavesTheOlderCheckpointAndNoHalfOfTheNewOne) {
  RankState state(three_unit_spec(), kSplit);
  state.fill();
  save(folder_, state, 1);
  struct rlimit former{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &former), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small{.rlim_cur = 100'000, .rlim_max = former.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(save(folder_, state, 2), IoError);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &former), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  EXPECT_EQ(found().manifest().progress.step, Step(1));
}

// A writer that does not finish leaves no file.
TEST_F(CheckpointTest, AnAbandonedWriterLeavesNothing) {
  {
    CheckpointWriter writer(folder_, Step(3));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

}  // namespace
}  // namespace longshore
