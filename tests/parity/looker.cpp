#include "tests/parity/looker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "config/run_config.h"
#include "tests/fakes/command_run.h"
#include "trainer/data/run_prepare.h"
#include "trainer/directory/metrics_reader.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// Returns the refusal of a command that failed, or its output.
Seen seen_in(const Ended& ended) {
  if (ended.exit_code == 0) return {.text = ended.out};
  return {.refused = true, .text = std::to_string(ended.exit_code) + "\n" + ended.out + ended.err};
}

// Returns the names of the files; those of logs have the time in their name.
std::string files_of(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    const std::string name = fs::relative(entry.path(), directory).string();
    const bool events = name.find("tfevents") != std::string::npos;
    if (entry.is_regular_file()) names.push_back(events ? "tfevents" : name);
  }
  std::ranges::sort(names);
  std::string text;
  for (const std::string& name : names) text += name + "\n";
  return text;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Looker::Looker(const std::string& name) : directory_(scratch_directory(name)) {
  fs::create_directories(directory_);
  for (const auto& [preset, model, seed] :
       {std::array{"tiny-llama", "model", "42"}, std::array{"tiny-llama", "model2", "5"},
        std::array{"tiny-qwen2", "biased", "42"}, std::array{"tiny-mixtral", "experts", "42"},
        std::array{"tiny-glm4-moe", "corrected", "42"}}) {
    EXPECT_EQ(
        run_command({"init-model", "--preset", preset, "--seed", seed, path(model)}).exit_code, 0);
  }
  fs::copy(golden_directory("gpt_oss-mxfp4"), path("packed"), fs::copy_options::recursive);
  write_data();
  std::ofstream(path("one.jinja"))
      << "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ mark }}{{ strftime_now('%Y') }}"
         "</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
  std::ofstream(path("two.jinja"))
      << "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
         "{% if add_generation_prompt %}[assistant]{% endif %}";
  std::ofstream(path("run.toml")).close();
}

Looker::~Looker() {
  fs::remove_all(directory_);
}

void Looker::write_rows(const std::string& name, const std::string& row) const {
  std::ofstream file(path(name));
  for (char number = '0'; number < '8'; ++number) {
    std::string text = row;
    std::ranges::replace(text, '#', number);
    file << text << "\n";
  }
}

void Looker::write_data() const {
  write_rows("rows.jsonl", "{\"text\": \"a row of text, number #\"}");
  write_rows("other.jsonl", "{\"text\": \"other words #\"}");
  write_rows("bad.jsonl", "{\"text\": \"a row #\"}\n{\"nothing\": #}");
  write_rows("special.jsonl", "{\"text\": \"a row <|endoftext|> #\"}");
  write_rows("tokens.jsonl", "{\"input_ids\": [5, 6, 1#]}");
  write_rows("prompts.jsonl",
             "{\"instruction\": \"say #\", \"input\": \"c\", \"output\": \"word #\"}");
  write_rows("pairs.jsonl",
             "{\"prompt\": \"say #\", \"chosen\": \"word #\", \"rejected\": \"none\"}");
  write_rows("judged.jsonl",
             "{\"prompt\": \"say #\", \"completion\": \"word #\", \"label\": true}");
  // The first ratio is far below 1 and the second far above, and the clip holds both.
  write_rows("policy.jsonl",
             "{\"input_ids\": [5, 6, 1#], \"old_logps\": [-2, -9], \"advantages\": [-1, 1]}");
  write_rows("teacher.jsonl",
             "{\"input_ids\": [5, 6, 1#], \"teacher_ids\": [[6, 7], [8]], "
             "\"teacher_logps\": [[-1, -2], [-0.5]]}");
  const std::string answer = "{\"role\": \"assistant\", \"content\": \"a #\"}";
  const std::string turn = "{\"role\": \"user\", \"content\": \"q #\"}, " + answer;
  write_rows("chat.jsonl", "{\"messages\": [" + turn + ", " + turn + "]}");
  // Two answers follow the last question.
  write_rows("answers.jsonl", "{\"messages\": [" + turn + ", " + turn + ", " + answer + "]}");
  std::ofstream(path("few.jsonl")) << "{\"text\": \"one\"}\n{\"text\": \"two of them\"}\n";
}

Arguments Looker::command(Arguments words, const Arguments& settings) const {
  const Arguments base = {"model.path=$/model",
                          "data.train=[\"$/rows.jsonl\"]",
                          "data.cache=$/cache",
                          "data.max_tokens=64",
                          "data.packing=false",
                          "train.sequences_per_step=2",
                          "optimizer.lr=0.01",
                          "precision.compute=fp32",
                          "device.threads=1",
                          "offload.threads=1",
                          "offload.host_memory=2GiB",
                          "checkpoint.export=never",
                          "run.dir=$/run"};
  Arguments all = joined(base, settings);
  const auto of_epochs = [](const std::string& word) { return word.starts_with("train.epochs"); };
  if (std::ranges::none_of(all, of_epochs)) all.insert(all.begin(), "train.steps=2");
  for (const std::string& setting : all) {
    std::string word = "--" + setting;
    for (size_t at = word.find('$'); at != std::string::npos; at = word.find('$')) {
      word.replace(at, 1, directory_);
    }
    words.push_back(word);
  }
  return words;
}

Seen Looker::plan(const Arguments& options, const Arguments& settings) const {
  return seen_in(run_command(command(joined({"plan", path("run.toml")}, options), settings)));
}

Seen Looker::plan_of_ranks(const Arguments& settings) const {
  Seen seen = plan({"--json", "--ranks", "4", "--ranks-per-node", "2"}, settings);
  if (seen.refused) return seen;
  Json facts = Json::parse(seen.text);
  facts.erase("machine");  // the available memory changes from moment to moment
  seen.text = facts.dump();
  return seen;
}

Seen Looker::run(const Arguments& settings) const {
  for (const char* name : {"run", "elsewhere", "drive"}) fs::remove_all(path(name));
  const Ended ended = run_command(command({"train", path("run.toml")}, settings));
  if (ended.exit_code != 0) return seen_in(ended);
  const std::string name = fs::exists(path("elsewhere")) ? "elsewhere" : "run";
  std::string text = name + "\n" + text_of_file(path(name + "/plan.txt"));
  read_metrics(path(name + "/metrics.jsonl"), {"step", "eval", "event"},
               [&text](const MetricsLine& line) {
                 for (const char* key : {"loss", "lr", "grad_norm", "clip_scale", "epoch", "tokens",
                                         "aux_loss", "sets", "router", "text"}) {
                   if (line.object.contains(key)) text += line.object.at(key).dump() + " ";
                 }
                 text += "\n";
                 return true;
               });
  text += files_of(path(name));
  return {.text = text + "lines of steps: " + std::to_string(count_of(ended.err, "  loss "))};
}

// Leaves out what repeats the settings: the cache's file has their hash in its name.
Seen Looker::prepared(const Arguments& settings) const {
  Seen seen = seen_in(run_command(command({"prepare", path("run.toml"), "--json"}, settings)));
  if (seen.refused) return seen;
  std::istringstream lines(seen.text);
  seen.text.clear();
  for (std::string line; std::getline(lines, line);) {
    Json facts = Json::parse(line);
    for (const char* repeated : {"prepared", "format", "detected"}) facts.erase(repeated);
    seen.text += facts.dump() + "\n";
  }
  return seen;
}

// Returns the number of prepared files after another file was prepared into the same cache.
Seen Looker::cache_files(const Arguments& settings) const {
  fs::remove_all(path("small"));
  const Arguments cache = joined(settings, {"data.cache=$/small"});
  for (const char* file : {"rows", "other"}) {
    const std::string train = "data.train=[\"$/" + std::string(file) + ".jsonl\"]";
    const Ended ended = run_command(command({"prepare", path("run.toml")}, joined(cache, {train})));
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
  }
  return {.text = std::to_string(count_of(files_of(path("small")), ".tok"))};
}

Seen Looker::prepare_threads(const Arguments& settings) const {
  std::vector<Override> overrides;
  for (const std::string& word : command({}, settings)) {
    const size_t sign = word.find('=');
    overrides.push_back({word.substr(2, sign - 2), word.substr(sign + 1)});
  }
  const RunConfig config = load_run_config({path("run.toml")}, overrides);
  return {.text = std::to_string(RunPreparation(config, path("model"), 257).options({}).threads)};
}

Seen Looker::look(Sight sight, const Arguments& settings) const {
  switch (sight) {
    case Sight::kRun:
      return run(settings);
    case Sight::kRanks:
      return plan_of_ranks(settings);
    case Sight::kGpus:
      return plan({"--json", "--machine", "2x-rtx-4090"}, settings);
    case Sight::kNoGpu:
      return plan({"--json", "--machine", "cpu-desktop-ddr5"}, settings);
    case Sight::kSchedule:
      return plan({"--schedule"}, settings);
    case Sight::kPrepare:
      return prepared(settings);
    case Sight::kCacheFiles:
      return cache_files(settings);
    case Sight::kThreads:
      return prepare_threads(settings);
  }
  return {};
}

}  // namespace longshore
