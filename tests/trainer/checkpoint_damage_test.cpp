// Damaged checkpoints, killed writers, listing and pruning of checkpoints.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "hf/safetensors_reader.h"
#include "tests/trainer/checkpoint_fixture.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/checkpoint/checkpoint_directory.h"

namespace longshore {
namespace {

constexpr StateOptions kSplit{StateFormat::kSplit, DType::kBF16, DType::kBF16};
constexpr const char* kStateFile = "state-00000-of-00001.safetensors";

void flip_byte(const std::string& path, Bytes offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(offset);
  file.put(byte);
  ASSERT_TRUE(file.good()) << path;
}

Bytes size_of(const std::string& path) {
  return static_cast<Bytes>(std::filesystem::file_size(path));
}

// CheckpointDamageTest: two checkpoints, of steps 10 (state 1) and 20 (state 2).
class CheckpointDamageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RankState state(three_unit_spec(), kSplit);
    state.fill(1);
    older_ = save(folder_, state, 10).path;
    state.fill(2);
    newer_ = save(folder_, state, 20).path;
  }

  // Expects that the newer checkpoint is refused with its name and `what`, and the older is used.
  void expect_older_is_used(const std::string& file, const std::string& what) {
    FoundCheckpoint found = find_checkpoint(folder_, "auto");
    ASSERT_TRUE(found.checkpoint.has_value());
    EXPECT_EQ(found.checkpoint->path(), older_);
    ASSERT_EQ(found.refused.size(), 1u);
    EXPECT_NE(found.refused[0].find(newer_ + "/" + file), std::string::npos) << found.refused[0];
    EXPECT_NE(found.refused[0].find(what), std::string::npos) << found.refused[0];
    EXPECT_THROW(find_checkpoint(folder_, newer_), CheckpointError);
  }

  const TemporaryDirectory directory_;
  const std::string folder_ = directory_.file("checkpoints");
  std::string older_;
  std::string newer_;
};

// A flipped byte in any tensor is found, and the tensor is named.
TEST_F(CheckpointDamageTest, AFlippedByteInAnyTensorNamesTheTensor) {
  const std::string path = newer_ + "/" + kStateFile;
  const std::vector<TensorInfo> tensors = SafetensorsFile::open(path).tensors();
  ASSERT_EQ(tensors.size(), 21u);
  for (const TensorInfo& tensor : tensors) {
    for (const Bytes offset : {tensor.file_begin, tensor.file_begin + tensor.bytes - 1}) {
      flip_byte(path, offset);
      expect_older_is_used(kStateFile, "'" + tensor.name + "' does not match its checksum");
      flip_byte(path, offset);
    }
  }
}

// A flipped byte anywhere in a state file's header is found.
TEST_F(CheckpointDamageTest, AFlippedByteAnywhereInAHeaderIsFound) {
  const std::string path = newer_ + "/" + kStateFile;
  const Bytes header = SafetensorsFile::open(path).tensors()[0].file_begin;
  for (Bytes offset = 0; offset < header; offset += 7) {
    flip_byte(path, offset);
    expect_older_is_used(kStateFile, "");
    flip_byte(path, offset);
  }
}

// A flipped byte anywhere in the manifest is found.
TEST_F(CheckpointDamageTest, AFlippedByteAnywhereInTheManifestIsFound) {
  const std::string path = newer_ + "/manifest.json";
  const Bytes bytes = size_of(path);
  for (Bytes offset = 0; offset < bytes; offset += offset + 60 < bytes ? 23 : 1) {
    flip_byte(path, offset);
    expect_older_is_used("manifest.json", "");
    flip_byte(path, offset);
  }
}

// A truncated state file is named.
TEST_F(CheckpointDamageTest, ATruncatedFileIsNamed) {
  const std::string path = newer_ + "/" + kStateFile;
  for (const Bytes cut : {Bytes{1}, Bytes{4096}, size_of(path) - 4, size_of(path)}) {
    const std::string copy = directory_.file("copy");
    std::filesystem::copy_file(path, copy);
    std::filesystem::resize_file(path, static_cast<uintmax_t>(size_of(path) - cut));
    expect_older_is_used(kStateFile, "it was cut off");
    std::filesystem::rename(copy, path);
  }
  std::filesystem::resize_file(newer_ + "/manifest.json", 100);
  expect_older_is_used("manifest.json", "cut off");
}

// A state file that is too long is named.
TEST_F(CheckpointDamageTest, ALongerFileIsNamed) {
  std::ofstream(newer_ + "/" + kStateFile, std::ios::app) << "x";
  expect_older_is_used(kStateFile, "bytes, not");
}

// A missing state file is named.
TEST_F(CheckpointDamageTest, AMissingFileIsNamed) {
  std::filesystem::remove(newer_ + "/" + kStateFile);
  expect_older_is_used(kStateFile, "missing");
}

// A missing manifest is named.
TEST_F(CheckpointDamageTest, AMissingManifestIsNamed) {
  std::filesystem::remove(newer_ + "/manifest.json");
  expect_older_is_used("manifest.json", "No such file");
}

// A state file of another step is refused by its checksum.
TEST_F(CheckpointDamageTest, AStateFileOfAnotherStepIsRefused) {
  std::filesystem::copy_file(older_ + "/" + kStateFile, newer_ + "/" + kStateFile,
                             std::filesystem::copy_options::overwrite_existing);
  expect_older_is_used(kStateFile, "does not match its checksum");
}

// A checkpoint under the name of another step is refused.
TEST_F(CheckpointDamageTest, ACheckpointUnderAnotherStepsNameIsRefused) {
  std::filesystem::remove_all(newer_);
  std::filesystem::copy(older_, newer_, std::filesystem::copy_options::recursive);
  expect_older_is_used("manifest.json", "step-00000010");
}

// Without a valid checkpoint the error lists every reason.
TEST_F(CheckpointDamageTest, EveryReasonIsListedWhereNoneIsValid) {
  std::filesystem::remove(newer_ + "/" + kStateFile);
  flip_byte(older_ + "/manifest.json", 50);
  try {
    find_checkpoint(folder_, "auto");
    FAIL();
  } catch (const CheckpointError& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.exit_code(), ExitCode::kCheckpoint);
    EXPECT_NE(text.find(newer_ + "/" + kStateFile), std::string::npos) << text;
    EXPECT_NE(text.find(older_ + "/manifest.json"), std::string::npos) << text;
  }
}

// Bytes that change after the check are found, because they are checksummed again on use.
TEST_F(CheckpointDamageTest, BytesThatChangeAfterTheCheckAreNotTaken) {
  const FoundCheckpoint found = find_checkpoint(folder_, "auto");
  const std::string path = newer_ + "/" + kStateFile;
  flip_byte(path, size_of(path) - 1);
  RankState reader(three_unit_spec(), kSplit);
  EXPECT_THROW(found.checkpoint->restore(reader.model(), reader.sweep()), CheckpointError);
}

// A manifest with a right checksum and inconsistent content is refused.
TEST_F(CheckpointDamageTest, ManifestsThatDoNotHoldTogetherAreRefused) {
  const std::string path = newer_ + "/manifest.json";
  const std::string text = read_whole_file(path, kMiB);
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    ASSERT_NE(changed.find(from), std::string::npos) << from;
    changed.replace(changed.find(from), from.size(), to);
    const size_t digits = changed.size() - 20;
    changed.replace(digits, 16, std::string(16, '0'));
    changed.replace(digits, 16, hash_text(hash64(changed)));
    write_file_durably(path, changed);
    EXPECT_THROW(Checkpoint::open(newer_), CheckpointError) << to;
  };
  refused("\"version\": 2", "\"version\": 1");
  refused("\"step\": 20", "\"step\": -20");
  refused("\"step\": 20", "\"step\": \"20\"");
  refused("\"seed\": 42", "\"seed\": 4.5");
  refused("\"name\": \"state-", "\"name\": \"../state-");
  // The files exist.
  for (const std::string& folder : {newer_ + "/inside", newer_ + "/../outside"}) {
    std::filesystem::create_directory(folder);
    std::filesystem::copy_file(newer_ + "/" + kStateFile, folder + "/" + kStateFile);
  }
  refused("\"name\": \"state-", "\"name\": \"inside/state-");
  refused("\"name\": \"state-", "\"name\": \"../outside/state-");
  refused("\"name\": \"state-", "\"name\": \"");
  refused("\"parameter\": \"embed.weight\"", "\"parameter\": \"other\"");
  refused("\"begin\": 0", "\"begin\": 1");
  refused("\"begin\": 0", "\"begin\": 9223372036854775807");
  refused("\"elements\": 6168", "\"elements\": 6167");
  refused("\"elements\": 6168", "\"elements\": 9223372036854775807");
  refused("\"kind\": \"exp_avg\"", "\"kind\": \"master\"");
  refused("\"kind\": \"exp_avg\"", "\"kind\": \"momentum\"");
  refused("   257,", "   9223372036854775807,");
  refused("\"files\": [", "\"files\": [{}, ");
  refused("\"files\": [", "\"files\": [[[[[");
  refused("\"skipped\": {", "\"skipped\": 3, \"other\": {");
  refused("\"seed\": 42", "\"seed\": 9223372036854775808");
  refused("\"seed\": 42", "\"seed\": 43");
  refused("\"seed\": 42", "\"seed\": null");
  refused("\"step\": 20", "\"step\": 9223372036854775807");
  refused("\"adam_step\": 19", "\"adam_step\": 21");
  refused("\"in_row\": 0", "\"in_row\": 2");
  refused("\"epoch\": 2", "\"epoch\": -1");
  refused("\"epoch\": 2", "\"epoch\": 2.5");
  refused("\"epoch\": 2", "\"epoch\": null");
  refused("\"epoch\": 2", "\"epoch\": 9007199254740992");
  refused("\"position\": 160", "\"position\": -1");
  refused("\"position\": 160", "\"position\": 165");
  refused("\"position\": 160", "\"position\": true");
  refused("\"sequences\": 165", "\"sequences\": \"165\"");
  refused("\"sampler\": {", "\"sampler\": [], \"other\": {");
  refused("\"data\": \"", "\"data\": \"x");
  refused("\"model_fingerprint\": \"0123456789abcdef\"", "\"model_fingerprint\": \"another\"");
  refused("\"state_format\": \"split\"", "\"state_format\": \"fp8\"");
  refused("    257,\n    24", "    24,\n    257");
  refused("   \"name\": \"state-", "   \"name\": 7, \"other\": \"state-");
}

// A file that the manifest lists twice is refused by name.
TEST_F(CheckpointDamageTest, AFileThatIsListedTwiceIsRefused) {
  const std::string path = newer_ + "/manifest.json";
  Json manifest = Json::parse(read_whole_file(path, kMiB));
  manifest["files"].push_back(manifest["files"][0]);
  manifest["manifest_xxh3"] = std::string(16, '0');
  std::string text = manifest.dump(1) + "\n";
  text.replace(text.size() - 20, 16, hash_text(hash64(text)));
  write_file_durably(path, text);
  expect_older_is_used("manifest.json", "listed twice");
}

// A manifest without the number of sequences, as older versions wrote it, is read.
TEST_F(CheckpointDamageTest, AManifestWithoutTheNumberOfSequencesIsRead) {
  const std::string path = newer_ + "/manifest.json";
  Json manifest = Json::parse(read_whole_file(path, kMiB));
  ASSERT_EQ(manifest["sampler"].erase("sequences"), 1u);
  manifest["manifest_xxh3"] = std::string(16, '0');
  std::string text = manifest.dump(1) + "\n";
  text.replace(text.size() - 20, 16, hash_text(hash64(text)));
  write_file_durably(path, text);
  const Checkpoint read = Checkpoint::open(newer_);
  EXPECT_EQ(read.manifest().progress.data.sequences, 0);
  EXPECT_EQ(read.manifest().progress.data.cursor.position, 160);
}

// Goal: nothing behind a link in a run's directory is written, renamed or removed.
TEST_F(CheckpointDamageTest, NothingIsChangedBehindALink) {
  const std::string link = directory_.file("linked");
  std::filesystem::create_directory_symlink(folder_, link);
  RankState state(three_unit_spec(), kSplit);
  EXPECT_THROW(save(link, state, 30, 1), IoError);
  EXPECT_THROW(prune_checkpoints(link, 1, CheckDepth::kSizes), IoError);
  EXPECT_THROW(set_aside_newer(link, Step(5)), IoError);
  EXPECT_THROW(clean_leftovers(link), IoError);
  EXPECT_EQ(list_checkpoints(folder_).size(), 2u);
}

// Directories whose names are not those of checkpoints stay as they are.
TEST_F(CheckpointDamageTest, OnlyLeftoversOfCheckpointsAreCleaned) {
  for (const char* name : {"my-notes.replaced", "step--1234567.replaced", "mine.writing"}) {
    std::filesystem::create_directories(folder_ + "/" + name);
  }
  std::filesystem::rename(newer_, newer_ + ".replaced");
  clean_leftovers(folder_);
  for (const char* name : {"my-notes.replaced", "step--1234567.replaced", "mine.writing"}) {
    EXPECT_TRUE(std::filesystem::exists(folder_ + "/" + name)) << name;
  }
  EXPECT_TRUE(std::filesystem::exists(newer_)) << "a kill between two renames is repaired";
}

// A checkpoint may be a link to another disk: it is read, and removing it removes only the link.
TEST_F(CheckpointDamageTest, ACheckpointMayBeALinkAndWhatIsBehindItStays) {
  const std::string elsewhere = directory_.file("elsewhere");
  std::filesystem::rename(newer_, elsewhere);
  std::filesystem::create_directory_symlink(elsewhere, newer_);
  EXPECT_EQ(find_checkpoint(folder_, "auto").checkpoint->path(), newer_);
  EXPECT_EQ(set_aside_newer(folder_, Step(10)).size(), 1u);
  EXPECT_EQ(remove_abandoned(folder_).size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(newer_ + ".abandoned"));
  EXPECT_TRUE(std::filesystem::exists(elsewhere + "/manifest.json"));
}

// Pruning removes abandoned checkpoints when asked to, and nothing else.
TEST_F(CheckpointDamageTest, PruningRemovesWhatWasAbandonedWhenAsked) {
  set_aside_newer(folder_, Step(10));
  std::filesystem::create_directories(folder_ + "/notes.abandoned");
  EXPECT_EQ(list_abandoned(folder_), (std::vector<std::string>{newer_ + ".abandoned"}));
  EXPECT_EQ(remove_abandoned(folder_).size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(newer_ + ".abandoned"));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/notes.abandoned")) << "not ours";
}

// Counts the directories of unfinished saves and removals.
int64_t unfinished(const std::string& folder) {
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    count += entry.path().has_extension() ? 1 : 0;
  }
  return count;
}

// The newest checkpoint is whole after every kill, and the next start cleans up: 40 writers, each
// further on than the last, save every step twice and are killed at random moments, mostly inside a
// save.
TEST_F(CheckpointDamageTest, AKilledWriterLeavesOnlyWholeCheckpoints) {
  int interrupted = 0;
  for (int trial = 0; trial < 40; ++trial) {
    const pid_t child = ::fork();
    if (child == 0) {
      RankState state(three_unit_spec(), kSplit);
      state.fill(3);
      for (int64_t i = 0;; ++i) save(folder_, state, 1000 * (trial + 1) + i / 2, /*keep=*/2);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(5'000 + 731 * trial));
    // A save that was seen once most likely still runs a moment later.
    const auto most = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (unfinished(folder_) == 0 && std::chrono::steady_clock::now() < most) {
    }
    std::this_thread::sleep_for(std::chrono::microseconds(37 * trial));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    interrupted += unfinished(folder_) > 0 ? 1 : 0;
    clean_leftovers(folder_);
    const auto reports = inspect_checkpoints(folder_, CheckDepth::kChecksums);
    ASSERT_FALSE(reports.empty());
    for (const CheckpointReport& report : reports) EXPECT_TRUE(report.valid()) << report.problem;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      EXPECT_FALSE(entry.path().has_extension()) << entry.path();
    }
  }
  EXPECT_GE(interrupted, 10) << "of 40 kills";
}

// Cleaning restores a checkpoint whose replacement was not finished.
TEST_F(CheckpointDamageTest, CleaningTakesBackACheckpointWhoseReplacementNeverCame) {
  std::filesystem::rename(newer_, newer_ + ".replaced");
  std::filesystem::create_directories(newer_ + ".writing");
  std::filesystem::create_directories(older_ + ".removing");
  std::filesystem::create_directories(folder_ + "/notes.writing");
  clean_leftovers(folder_);
  EXPECT_EQ(find_checkpoint(folder_, "auto").checkpoint->path(), newer_);
  EXPECT_FALSE(std::filesystem::exists(newer_ + ".writing"));
  EXPECT_FALSE(std::filesystem::exists(older_ + ".removing"));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/notes.writing")) << "not ours";
}

// A run that starts from an earlier step sets newer checkpoints aside; else it would resume the
// abandoned history, or remove its own new checkpoints as old.
TEST_F(CheckpointDamageTest, ARunThatStartsEarlierSetsNewerCheckpointsAside) {
  const FoundCheckpoint found = find_checkpoint(folder_, older_);
  EXPECT_EQ(found.checkpoint->path(), older_);
  EXPECT_EQ(set_aside_newer(folder_, found.checkpoint->manifest().progress.step),
            (std::vector<std::string>{newer_ + ".abandoned"}));
  RankState state(three_unit_spec(), kSplit);
  save(folder_, state, 15, 1);
  EXPECT_EQ(list_checkpoints(folder_).at(0).step, Step(15));

  EXPECT_FALSE(find_checkpoint(folder_, "never").checkpoint.has_value());
  EXPECT_EQ(set_aside_newer(folder_, Step(0)).size(), 1u);
  EXPECT_TRUE(list_checkpoints(folder_).empty());
  EXPECT_TRUE(std::filesystem::exists(newer_ + ".abandoned/manifest.json"));
  save(folder_, state, 20);
  EXPECT_EQ(set_aside_newer(folder_, Step(0)), (std::vector<std::string>{newer_ + ".abandoned-2"}));
}

// A new checkpoint is kept although checkpoints of later steps exist.
TEST_F(CheckpointDamageTest, ASaveIsNeverPushedOutByCheckpointsOfLaterSteps) {
  RankState state(three_unit_spec(), kSplit);
  const std::string saved = save(folder_, state, 5, 1).path;
  ASSERT_EQ(list_checkpoints(folder_).size(), 1u);
  EXPECT_EQ(list_checkpoints(folder_)[0].path, saved);
  EXPECT_TRUE(std::filesystem::exists(newer_ + ".abandoned/manifest.json"));
}

// A run that resumes sets damaged newer checkpoints aside.
TEST_F(CheckpointDamageTest, ARunThatResumesSetsDamagedNewerOnesAside) {
  std::filesystem::remove(newer_ + "/" + kStateFile);
  const FoundCheckpoint found = find_checkpoint(folder_, "auto");
  EXPECT_EQ(found.checkpoint->path(), older_);
  EXPECT_EQ(found.refused.size(), 1u);
  EXPECT_EQ(set_aside_newer(folder_, found.checkpoint->manifest().progress.step).size(), 1u);
}

// The list shows the reason of each damaged checkpoint, as text and as JSON.
TEST_F(CheckpointDamageTest, ListsWithReasonsAsTextAndAsJson) {
  flip_byte(newer_ + "/" + kStateFile, size_of(newer_ + "/" + kStateFile) - 1);
  const auto shallow = inspect_checkpoints(folder_, CheckDepth::kSizes);
  EXPECT_TRUE(shallow[0].valid());
  const auto deep = inspect_checkpoints(folder_, CheckDepth::kChecksums);
  ASSERT_EQ(deep.size(), 2u);
  EXPECT_FALSE(deep[0].valid());
  EXPECT_TRUE(deep[1].valid());
  EXPECT_EQ(deep[1].bytes, size_of(older_ + "/" + kStateFile));
  const std::string text = format_reports(deep);
  EXPECT_NE(text.find("step 20"), std::string::npos);
  EXPECT_NE(text.find("damaged"), std::string::npos);
  const Json json = to_json(deep);
  EXPECT_EQ(json[0]["valid"], false);
  EXPECT_EQ(json[1]["valid"], true);
  EXPECT_EQ(json[1]["step"], 10);
  EXPECT_FALSE(json[1].contains("problem"));
}

// Pruning never removes the last valid checkpoint.
TEST_F(CheckpointDamageTest, PruningNeverRemovesTheLastValidOne) {
  flip_byte(newer_ + "/" + kStateFile, size_of(newer_ + "/" + kStateFile) - 1);
  EXPECT_TRUE(prune_checkpoints(folder_, 1, CheckDepth::kChecksums).empty());
  EXPECT_EQ(list_checkpoints(folder_).size(), 2u);
  RankState state(three_unit_spec(), kSplit);
  save(folder_, state, 30, 10);
  EXPECT_EQ(prune_checkpoints(folder_, 1, CheckDepth::kChecksums),
            (std::vector<std::string>{newer_, older_}));
  EXPECT_EQ(list_checkpoints(folder_).size(), 1u);
}

// Only exact names of steps are taken as checkpoints.
TEST(CheckpointNames, AreTakenOnlyAsWritten) {
  EXPECT_EQ(checkpoint_name(Step(123)), "step-00000123");
  EXPECT_EQ(checkpoint_name(Step(1234567890)), "step-1234567890");
  const TemporaryDirectory directory;
  for (const char* name :
       {"step-00000123", "step-123", "step-0000012x", "step-00000124.writing", "step--0000001",
        "step--1234567", "step-99999999999999999999", "other"}) {
    std::filesystem::create_directories(directory.file(name));
  }
  std::ofstream(directory.file("step-00000500")) << "a file";
  const auto entries = list_checkpoints(directory.path());
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].step, Step(123));
}

}  // namespace
}  // namespace longshore
