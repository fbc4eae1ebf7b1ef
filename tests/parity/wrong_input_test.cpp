// Every kind of wrong input on the command line ends with its documented exit code and a message
// that names the problem. (The readers' own tests cover many more kinds.)
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "tests/parity/run_driver.h"
#include "trainer/commands/command_line.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// WrongInput: a copy of a golden model and a run over it, in which each test breaks one thing.
class WrongInput : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = scratch_directory("wrong-input");
    fs::create_directories(directory_);
    fs::copy(golden_directory("llama-indexed"), model());
    arguments_ = RunDriver::golden_arguments("llama-indexed");
    add("--model.path=\"" + model() + "\"");
    add("--data.train=[\"" + rows() + "\"]");
    add("--run.dir=\"" + directory_ + "/run\"");
    add("--data.cache=\"" + directory_ + "/cache\"");
    write(rows(), "{\"input_ids\": [1, 2, 3, 4]}\n{\"input_ids\": [5, 6, 7]}\n");
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string model() const { return directory_ + "/model"; }
  std::string rows() const { return directory_ + "/rows.jsonl"; }
  std::string shard() const { return model() + "/model-00002-of-00003.safetensors"; }
  void add(const std::string& argument) { arguments_.push_back(argument); }
  static void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void replace_in(const std::string& path, const std::string& from, const std::string& to) {
    std::string text = read(path);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write(path, text.replace(at, from.size(), to));
  }
  // Trains and expects this exit code and all these words in the messages.
  void expect(int exit_code, const std::vector<std::string>& words) {
    write(directory_ + "/empty.toml", "");
    std::vector<std::string> command = {"train", directory_ + "/empty.toml"};
    command.insert(command.end(), arguments_.begin(), arguments_.end());
    testing::internal::CaptureStderr();
    const int got = run_command_line(command);
    const std::string messages = testing::internal::GetCapturedStderr();
    EXPECT_EQ(got, exit_code) << messages;
    for (const std::string& word : words) {
      EXPECT_NE(messages.find(word), std::string::npos) << word << " in: " << messages;
    }
  }

  std::string directory_;
  std::vector<std::string> arguments_;
};

// A run inside the model's directory is refused at its start, because its export would be there.
TEST_F(WrongInput, ARunInsideTheModelsDirectoryIsRefusedAtItsStart) {
  add("--run.dir=\"" + model() + "/runs/a\"");
  add("--checkpoint.export=end");
  expect(2, {"run.dir", model() + "/runs/a: lies in the model"});
  EXPECT_FALSE(fs::exists(model() + "/runs"));
  add("--checkpoint.export=never");
  add("--train.steps=1");
  expect(0, {});
}

// The unchanged input trains.
TEST_F(WrongInput, NothingWrongTrains) {
  add("--train.steps=1");
  expect(0, {});
}

// An unknown key ends with code 2 and the nearest key.
TEST_F(WrongInput, UnknownKey) {
  add("--optimizer.weigth_decay=0.1");
  expect(2, {"unknown key", "weight_decay"});
}

// Several wrong keys are reported together with code 2.
TEST_F(WrongInput, WrongTypeOutOfBoundsAndUnknownChoiceAllAtOnce) {
  add("--train.sequences_per_step=many");
  add("--optimizer.lr=-1.0");
  add("--offload.optimizer=nvme");
  expect(2, {"train.sequences_per_step", "optimizer.lr", "offload.optimizer"});
}

// A missing model directory ends with code 2.
TEST_F(WrongInput, NoModelDirectory) {
  add("--model.path=\"" + directory_ + "/none\"");
  expect(2, {"/none", "no such directory"});
}

// An unknown family ends with code 2 and the supported list.
TEST_F(WrongInput, UnknownFamily) {
  replace_in(model() + "/config.json", "\"model_type\": \"llama\"", "\"model_type\": \"mamba\"");
  expect(2, {"mamba", "llama", "config.json"});
}

// A config that is not JSON ends with code 5.
TEST_F(WrongInput, ConfigIsNotJson) {
  write(model() + "/config.json", "{\"model_type\": ");
  expect(5, {"config.json"});
}

// Weights that do not have the config's sizes end with code 5.
TEST_F(WrongInput, SizesOfConfigAndWeightsDiffer) {
  replace_in(model() + "/config.json", "\"hidden_size\": 16", "\"hidden_size\": 32");
  expect(5, {"shape"});
}

// A missing weight file ends with code 5 and its name.
TEST_F(WrongInput, AWeightFileIsMissing) {
  fs::remove(shard());
  expect(5, {"model-00002-of-00003.safetensors"});
}

// A truncated weight file ends with code 5 and its name.
TEST_F(WrongInput, AWeightFileIsTruncated) {
  fs::resize_file(shard(), fs::file_size(shard()) - 8);
  expect(5, {"model-00002-of-00003.safetensors"});
}

// A header length beyond the file is refused.
TEST_F(WrongInput, AHeaderLengthBeyondTheFile) {
  std::string bytes = read(shard());
  bytes.replace(0, 8, std::string(8, '\x7f'));
  write(shard(), bytes);
  expect(5, {"model-00002-of-00003.safetensors", "header"});
}

// An index that leaves the model's directory ends with code 5.
TEST_F(WrongInput, TheIndexLeavesTheDirectory) {
  replace_in(model() + "/model.safetensors.index.json", "model-00002-of-00003.safetensors",
             "../../../../../../../etc/passwd");
  expect(5, {"index.json"});
}

// A model with pickle weights only is refused.
TEST_F(WrongInput, PickleWeightsOnly) {
  for (const auto& entry : fs::directory_iterator(model())) {
    if (entry.path().string().find("model") != std::string::npos &&
        entry.path().extension() != "" && entry.path().filename().string().rfind("model", 0) == 0) {
      fs::remove(entry.path());
    }
  }
  write(model() + "/pytorch_model.bin", "x");
  expect(2, {"pytorch_model.bin"});
}

// A missing data file ends with code 5 and its name.
TEST_F(WrongInput, NoDataFile) {
  add("--data.train=[\"" + directory_ + "/none.jsonl\"]");
  expect(5, {"/none.jsonl"});
}

// A row that is not JSON ends with code 5 and its line.
TEST_F(WrongInput, ARowIsNotJson) {
  write(rows(), "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, \n");
  expect(5, {"rows.jsonl:2"});
}

// A token outside the vocabulary ends with code 5 and its line.
TEST_F(WrongInput, ATokenIsOutsideTheVocabulary) {
  write(rows(), "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 257]}\n");
  expect(5, {"rows.jsonl:2", "257"});
}

// Labels of another length end with code 5 and their line.
TEST_F(WrongInput, LabelsOfAnotherLength) {
  write(rows(), "{\"input_ids\": [1, 2, 3], \"labels\": [1, 2]}\n");
  expect(5, {"rows.jsonl:1", "labels"});
}

// A row without a trained token ends with code 5 and its line.
TEST_F(WrongInput, ARowWithoutATrainedToken) {
  write(rows(), "{\"input_ids\": [1, 2], \"labels\": [-100, -100]}\n");
  expect(5, {"rows.jsonl:1"});
}

// A row that is too long is refused.
TEST_F(WrongInput, ARowTooLong) {
  std::string row = "{\"input_ids\": [1";
  for (int i = 0; i < 60; ++i) row += ", 2";
  write(rows(), row + "]}\n");
  expect(5, {"rows.jsonl:1", "data.overlength"});
}

// Text without a tokenizer ends with code 5.
TEST_F(WrongInput, TextWithoutATokenizer) {
  write(rows(), "{\"text\": \"hello\"}\n");
  add("--data.format=text");
  expect(5, {"tokenizer.json"});
}

// A damaged tokenizer is refused.
TEST_F(WrongInput, ADamagedTokenizer) {
  write(rows(), "{\"text\": \"hello\"}\n");
  write(model() + "/tokenizer.json", "{\"model\": {\"type\": \"BPE\"}}");
  add("--data.format=text");
  expect(5, {"tokenizer.json"});
}

// A tied model with a head of its own ends with code 2.
TEST_F(WrongInput, ATiedModelWithAHeadOfItsOwn) {
  replace_in(model() + "/config.json", "\"model_type\"",
             "\"tie_word_embeddings\": true, \"model_type\"");
  expect(2, {"tied", "tie_word_embeddings"});
}

// A freeze pattern that matches nothing ends with code 2.
TEST_F(WrongInput, AFreezePatternThatMatchesNothing) {
  add("--train.freeze=[\"model.lyers.*\"]");
  expect(2, {"model.lyers.*"});
}

// Too little device memory ends with code 3.
TEST_F(WrongInput, TooLittleDeviceMemory) {
  add("--offload.device_memory=32KiB");
  expect(3, {"device memory", "32.0 KiB"});
}

// Too little host memory ends with code 3.
TEST_F(WrongInput, TooLittleHostMemory) {
  add("--offload.host_memory=1MiB");
  expect(3, {"host memory"});
}

// Goal: sizes that no machine holds are answered at once, with the code of a plan that does not
// fit, or of a model that is none. (Where they are answered by making a unit for each piece, this
// test takes gigabytes and minutes.)
TEST_F(WrongInput, SizesThatNoMachineHolds) {
  add("--model.init=random");
  const std::string config = model() + "/config.json";
  const std::string text = read(config);
  struct Case {
    const char* key;
    int64_t size;
    int exit_code;
    const char* words;
  };
  for (const auto& [key, size, exit_code, words] :
       {Case{"vocab_size", 2147483647, 3, "too little"},
        Case{"vocab_size", 200000000, 3, "too little"},
        Case{"hidden_size", 2147483632, 2, "more than 2^46 parameters"}}) {
    Json changed = Json::parse(text);
    changed[key] = size;
    write(config, changed.dump());
    for (const auto& entry : fs::directory_iterator(model())) {
      if (entry.path().string().find(".safetensors") != std::string::npos) fs::remove(entry.path());
    }
    expect(exit_code, {words});
  }
}

// A resume directory that is no checkpoint ends with code 6.
TEST_F(WrongInput, AResumeDirectoryThatIsNoCheckpoint) {
  add("--checkpoint.resume=\"" + model() + "\"");
  expect(6, {"manifest.json"});
}

// An unknown command or option ends with code 2.
TEST_F(WrongInput, AnUnknownCommandAndAnUnknownOption) {
  EXPECT_EQ(run_command_line({"trian"}), 2);
  EXPECT_EQ(run_command_line({"plan", "run.toml", "--jsn"}), 2);
  EXPECT_EQ(run_command_line({"train", "run.toml", "--train.steps"}), 2);
}

// A run with only non-finite losses ends with code 7.
TEST_F(WrongInput, LossThatIsNotFiniteEndsTheRunWithCodeSeven) {
  // One weight is infinite: every step is skipped, and nothing is changed.
  std::string bytes = read(shard());
  bytes.replace(bytes.size() - 4, 4, std::string("\x00\x00\x80\x7f", 4));
  write(shard(), bytes);
  add("--train.max_nonfinite_steps=3");
  expect(7, {"step 1 skipped", "3 steps in a row"});
}

}  // namespace
}  // namespace longshore
