// Files that a run remembers by name change in place, with size and time of modification kept, and
// the run goes on, warns or is refused. One small run is made for all tests; each works on a copy.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "tests/fakes/command_run.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Replaces the first `from` by `to`, of the same length, in place.
void change(const std::string& path, const std::string& from, const std::string& to) {
  ASSERT_EQ(from.size(), to.size());
  const size_t at = bytes_of(path).find(from);
  ASSERT_NE(at, std::string::npos) << path << ": " << from;
  const fs::file_time_type time = fs::last_write_time(path);
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at));
    file << to;
  }
  fs::last_write_time(path, time);
}

std::string rows_of(const std::string& word) {
  std::string rows;
  for (int i = 0; i < 24; ++i) {
    const std::string number = std::to_string(i);
    rows += R"({"messages": [{"role": "user", "content": "say )" + number +
            R"("}, {"role": "assistant", "content": ")" + word + " " + number + "\"}]}\n";
  }
  return rows;
}

constexpr const char* kTemplate =
    "{#- first -#}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

// Makes a model, data and a run of two steps, once for all tests.
const std::string& begun_run() {
  static const std::string directory = [] {
    std::string path = scratch_directory("inputs");
    fs::create_directories(path);
    EXPECT_EQ(run_command({"init-model", "--preset", "tiny-llama", path + "/model"}).exit_code, 0);
    put_text(path + "/rows.jsonl", rows_of("rows"));
    put_text(path + "/held.jsonl", rows_of("held"));
    put_text(path + "/own.jinja", kTemplate);
    put_text(path + "/run.toml",
             "[model]\npath = \"model\"\n"
             "[data]\ntrain = [\"rows.jsonl\"]\neval = [\"held.jsonl\"]\nmax_tokens = 48\n"
             "chat_template = \"own.jinja\"\ncache = \"cache\"\n[run]\ndir = \"run\"\n"
             "[train]\nsteps = 2\nsequences_per_step = 4\n[eval]\nevery_steps = 1\n"
             "[checkpoint]\nevery_steps = 1\n[precision]\ncompute = \"fp32\"\n"
             "[device]\nkind = \"cpu\"\nthreads = 1\n[offload]\nthreads = 1\n");
    return path;
  }();
  return directory;
}

class ChangedInputs : public testing::Test {
 protected:
  ChangedInputs() : directory_(scratch_directory("inputs-copy")) {
    fs::copy(begun_run(), directory_, fs::copy_options::recursive);
    const Ended ended = train(2);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
  }
  ~ChangedInputs() override { fs::remove_all(directory_); }
  static void TearDownTestSuite() { fs::remove_all(begun_run()); }

  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  Ended train(int steps) const {
    const fs::path before = fs::current_path();
    fs::current_path(directory_);
    const Ended ended =
        run_command({"train", "run.toml", "--train.steps=" + std::to_string(steps)});
    fs::current_path(before);
    return ended;
  }
  std::vector<Json> metrics(const std::string& kind) const {
    std::vector<Json> found;
    std::ifstream file(path("run/metrics.jsonl"));
    for (std::string line; std::getline(file, line);) {
      Json object = Json::parse(line);
      if (object.at("kind") == kind) found.push_back(std::move(object));
    }
    return found;
  }
  // Expects that the run refuses to go on, changes nothing, and goes on once `restore` was called.
  void expect_refusal(const std::function<void()>& restore) const {
    const std::map<std::string, std::string> record = record_of(path("run"));
    const Ended refused = train(4);
    EXPECT_EQ(refused.exit_code, 6) << refused.err;
    EXPECT_TRUE(says(refused.err, "the training data, its tokens or run.seed changed"))
        << refused.err;
    EXPECT_EQ(record_of(path("run")), record);
    restore();
    EXPECT_EQ(train(4).exit_code, 0);
  }

 private:
  std::string directory_;
};

// Goal: a run does not go on over other training data.
TEST_F(ChangedInputs, OfTheTrainingDataAreRefused) {
  change(path("rows.jsonl"), "rows 7", "rats 7");
  expect_refusal([&] { change(path("rows.jsonl"), "rats 7", "rows 7"); });
}

// Goal: another mode, owner or copy of the same data costs a reading and nothing else.
TEST_F(ChangedInputs, OfTheStatusAloneAreNone) {
  ASSERT_EQ(::chmod(path("rows.jsonl").c_str(), 0600), 0);
  fs::rename(path("rows.jsonl"), path("moved.jsonl"));
  fs::copy_file(path("moved.jsonl"), path("rows.jsonl"));
  const Ended ended = train(4);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_FALSE(says(ended.err, "earlier start of this run read")) << ended.err;
}

// Goal: a run does not go on with a tokenizer that gives its rows other tokens, and says that the
// tokenizer is another one where it gives them the same.
TEST_F(ChangedInputs, OfTheTokenizerAreRefusedOrNamed) {
  const std::string file = path("model/tokenizer.json");
  const auto swap = [&](const std::string& a, const std::string& b) {
    const Json vocabulary = Json::parse(bytes_of(file)).at("model").at("vocab");
    const std::string text = bytes_of(file);
    const std::string id_a = vocabulary.at(a).dump(), id_b = vocabulary.at(b).dump();
    const size_t at = text.find("\"" + a + "\"");
    ASSERT_NE(at, std::string::npos);
    const std::string between = text.substr(at + 3, text.find(id_a, at) - at - 3);
    const auto entry = [&](const std::string& token, const std::string& id) {
      return "\"" + token + "\"" + between + id;
    };
    change(file, entry(a, id_a), entry(a, "??"));
    change(file, entry(b, id_b), entry(b, id_a));
    change(file, entry(a, "??"), entry(a, id_b));
  };
  swap("r", "s");
  expect_refusal([&] { swap("r", "s"); });
  swap("Y", "Z");  // no row has these letters
  const Ended ended = train(6);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(says(ended.err, "the tokenizer is not the one that an earlier start")) << ended.err;
}

// Goal: the same of the chat template.
TEST_F(ChangedInputs, OfTheChatTemplateAreRefusedOrNamed) {
  change(path("own.jinja"), "[{{", "<{{");
  expect_refusal([&] { change(path("own.jinja"), "<{{", "[{{"); });
  change(path("own.jinja"), "first", "other");
  const Ended ended = train(6);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(says(ended.err, "the chat template is not the one that an earlier start"))
      << ended.err;
  EXPECT_FALSE(says(train(8).err, "earlier start of this run read")) << "it is said once";
}

// Goal: a damaged entry of the cache of prepared data is made again, and trains the same.
TEST_F(ChangedInputs, OfTheCacheAreMended) {
  const auto losses = [&] {
    std::vector<double> found;
    for (const Json& step : metrics("step")) found.push_back(step.at("loss").get<double>());
    return found;
  };
  const std::string kept = path("kept");
  fs::copy(path("run"), kept, fs::copy_options::recursive);
  ASSERT_EQ(train(4).exit_code, 0);
  const std::vector<double> undisturbed = losses();
  fs::remove_all(path("run"));
  fs::rename(kept, path("run"));
  for (const auto& entry : fs::directory_iterator(path("cache"))) {
    if (entry.path().extension() != ".tok") continue;
    const fs::file_time_type time = fs::last_write_time(entry.path());
    std::string bytes = bytes_of(entry.path());
    bytes.at(4096) ^= 1;  // of the first id
    put_text(entry.path(), bytes);
    fs::last_write_time(entry.path(), time);
  }
  const Ended ended = train(4);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(says(ended.err, "it is prepared again")) << ended.err;
  int warnings = 0;
  for (size_t at = 0; (at = ended.err.find("it is prepared again", at)) != std::string::npos;
       ++at) {
    ++warnings;
  }
  EXPECT_EQ(warnings, 2) << "one for each data file: " << ended.err;
  EXPECT_EQ(losses(), undisturbed);
}

// Goal: nothing is generated with an adapter over another model than its own.
TEST_F(ChangedInputs, OfTheFrozenModelEndGeneration) {
  const std::string config = path("lora.toml");
  put_text(config, bytes_of(path("run.toml")) + "[adapter]\nkind = \"lora\"\nr = 4\n");
  const std::vector<std::string> run = {config, "--run.dir=" + path("lora"),
                                        "--data.cache=" + path("cache")};
  const fs::path before = fs::current_path();
  fs::current_path(path(""));
  const Ended trained = run_command(joined({"train"}, run));
  const Arguments generate =
      joined({"generate"}, joined(run, {"--prompt", "say", "--max-new-tokens", "4"}));
  const Ended whole = run_command(generate);
  const std::string weights = path("model/model.safetensors");
  std::string other = bytes_of(weights);
  other.back() = static_cast<char>(other.back() ^ 1);
  put_text(weights, other);
  const Ended refused = run_command(generate);
  fs::current_path(before);
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(refused.exit_code, 6) << refused.err;
  EXPECT_EQ(refused.out, "");
  EXPECT_TRUE(says(refused.err, "model.safetensors: tensor '")) << refused.err;
  EXPECT_TRUE(says(refused.err, "has other values")) << refused.err;
}

// Goal: losses of other evaluation data are not compared with those of before.
TEST_F(ChangedInputs, OfTheEvaluationDataAreNamedAndTheBestBeginsAnew) {
  // Nothing that is evaluated from here on has a lower loss.
  std::ofstream(path("run/metrics.jsonl"), std::ios::app)
      << R"({"kind": "eval", "step": 2, "loss": 0.001})" << "\n";
  const Ended same = train(3);
  ASSERT_EQ(same.exit_code, 0) << same.err;
  EXPECT_FALSE(says(same.err, "the evaluation data is not") || says(same.err, "the best so far"))
      << same.err;
  change(path("held.jsonl"), "held 7", "hold 7");
  const Ended ended = train(4);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(says(ended.err, "the evaluation data is not what an earlier start")) << ended.err;
  EXPECT_TRUE(says(ended.err, "the best so far")) << ended.err;
  EXPECT_EQ(metrics("event").back().at("code"), "other_evaluation_data");
  EXPECT_FALSE(says(train(5).err, "the evaluation data is not")) << "it is said once";
}

}  // namespace
}  // namespace longshore
