// `check data` and `prepare` as users see them.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/json.h"
#include "config/run_config.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/test_files.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/commands/command_line.h"
#include "trainer/data/run_data.h"
#include "trainer/model/model_source.h"

namespace longshore {
namespace {

std::string printed(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  const int exit_code = run_command_line(arguments);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(exit_code, 0) << text;
  return text;
}

// A character that several tokens spell is shown whole, in the terminal and on the page.
TEST(CheckData, ShowsCharactersWholeThatSeveralTokensSpell) {
  const TemporaryDirectory directory;
  const std::string at = directory.path();
  std::ofstream(at + "/rows.jsonl") << R"({"prompt": "Harbour?", "completion": "\u6f22\u5b57 é"})"
                                    << "\n";
  printed({"init-model", "--preset", "tiny-llama", at + "/model"});
  std::ofstream(at + "/run.toml") << "[run]\ndir = \"" << at << "/run\"\n[model]\npath = \"" << at
                                  << "/model\"\n[data]\ntrain = [\"" << at
                                  << "/rows.jsonl\"]\ncache = \"" << at
                                  << "/cache\"\nmax_tokens = 64\n[train]\nsteps = 1\n";
  const std::string text =
      printed({"check", "data", at + "/run.toml", "--html", at + "/page.html"});
  const std::string terminal = printed({"check", "data", at + "/run.toml"});
  EXPECT_NE(terminal.find("⟦漢字 é"), std::string::npos) << terminal;
  // Counts come first, without those that are 0. The one document makes one line of the histogram,
  // and the rows follow.
  EXPECT_EQ(terminal.rfind("  format              prompt-completion (auto)\n", 0), 0u) << terminal;
  EXPECT_EQ(terminal.find("bad rows skipped"), std::string::npos) << terminal;
  const std::string lines = terminal.substr(terminal.find("lengths of documents\n") + 21);
  EXPECT_EQ(lines.find("row 0"), lines.find("\n\n") + 2) << lines;
  EXPECT_EQ(std::ranges::count(lines.substr(0, lines.find("row 0")), '\n'), 2) << lines;
  const Ended refused = run_command({"check", "data", at + "/run.toml", "--eval"});
  EXPECT_NE(refused.err.find("data.eval is empty and eval.split is 0"), std::string::npos)
      << refused.err;
  std::ifstream file(at + "/page.html");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(page.find(">漢</b>"), std::string::npos) << text;
  EXPECT_NE(page.find(">documents, at most 1</text>"), std::string::npos);
}

// The answers of a pair are shown one below the other in the terminal and side by side on the page,
// each with its scored tokens; a row of JSON says which answer it is.
TEST(CheckData, ShowsBothAnswersOfAPair) {
  const TemporaryDirectory directory;
  const std::string at = directory.path();
  std::ofstream(at + "/rows.jsonl") << R"({"prompt": "sky", "chosen": " blue", "rejected": " red"})"
                                    << "\n";
  printed({"init-model", "--preset", "tiny-llama", at + "/model"});
  std::ofstream(at + "/run.toml") << "[run]\ndir = \"" << at << "/run\"\n[model]\npath = \"" << at
                                  << "/model\"\n[data]\ntrain = [\"" << at
                                  << "/rows.jsonl\"]\ncache = \"" << at
                                  << "/cache\"\nmax_tokens = 64\n[train]\nsteps = 1\n";
  const std::string terminal = printed({"check", "data", at + "/run.toml"});
  const size_t chosen = terminal.find("row 0, chosen"), rejected = terminal.find("row 0, rejected");
  EXPECT_LT(chosen, rejected) << terminal;
  EXPECT_NE(terminal.find("⟦ blue", chosen), std::string::npos) << terminal;
  EXPECT_NE(terminal.find("⟦ red", rejected), std::string::npos) << terminal;
  EXPECT_NE(terminal.find("of up to 128 tokens"), std::string::npos) << terminal;
  printed({"check", "data", at + "/run.toml", "--html", at + "/page.html"});
  std::ifstream file(at + "/page.html");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  EXPECT_LT(page.find("<section><article><header>row 0, chosen"), page.find("</section>"));
  const std::string rows = printed({"check", "data", at + "/run.toml", "--json"});
  EXPECT_NE(rows.find("\"answer\":\"rejected\""), std::string::npos) << rows;
}

// Goal: --eval shows the rows that eval.split holds out, with their places, and measures them: the
// rows that an evaluation of the run has and its training lacks.
TEST(CheckData, ShowsTheRowsThatASplitHoldsOut) {
  const TemporaryDirectory directory;
  const std::string at = directory.path();
  std::ofstream file(at + "/rows.jsonl");
  for (int i = 0; i < 12; ++i) {
    // Every third row is left out, so numbers of prepared rows are not those of lines.
    file << (i % 3 == 0 ? R"({"text": "x", "weight": 0})"
                        : R"({"text": "row )" + std::to_string(i) + "\"}")
         << "\n";
  }
  file.close();
  printed({"init-model", "--preset", "tiny-llama", at + "/model"});
  std::ofstream(at + "/run.toml") << "[run]\ndir = \"" << at << "/run\"\n[model]\npath = \"" << at
                                  << "/model\"\n[data]\ntrain = [\"" << at
                                  << "/rows.jsonl\"]\ncache = \"" << at
                                  << "/cache\"\nmax_tokens = 64\n[train]\nsteps = 1\n"
                                  << "[eval]\nsplit = 0.5\nevery_steps = 1\n";
  const std::string held = printed({"check", "data", at + "/run.toml", "--eval", "--rows=0:12"});
  EXPECT_NE(held.find("held-out documents  4\n"), std::string::npos) << held;
  std::vector<Json> rows;
  std::istringstream lines(
      printed({"check", "data", at + "/run.toml", "--eval", "--rows=0:12", "--json"}));
  for (std::string line; std::getline(lines, line);) rows.push_back(parse_json(line, {}, "rows"));
  ASSERT_EQ(rows.size(), 4u);
  // The tokens of these rows are the data of the evaluation.
  const RunConfig config = load_run_config({at + "/run.toml"}, {});
  const ModelSource source(config);
  const SequenceData data = load_sequences(config, source, SequenceUse::kEvaluate, [] {});
  ASSERT_EQ(data.dataset->document_count(), 4);
  for (int64_t document = 0; document < 4; ++document) {
    std::vector<int64_t> ids, targets;
    data.dataset->append_document(document, ids, targets);
    const Json& row = rows[static_cast<size_t>(document)];
    EXPECT_EQ(row.at("input_ids"), Json(ids));
    EXPECT_EQ(row.at("text"), "row " + std::to_string(row.at("row").get<int>()));
  }
  const std::string one = printed({"check", "data", at + "/run.toml", "--eval", "--rows=1:2"});
  EXPECT_NE(one.find("row " + std::to_string(rows[1].at("row").get<int>()) + "  "),
            std::string::npos)
      << one;
}

// A judged answer is shown with its label and scored tokens. With KTO a pair has no longer
// sequence.
TEST(CheckData, ShowsTheLabelOfAnAnswer) {
  const TemporaryDirectory directory;
  const std::string at = directory.path();
  std::ofstream(at + "/rows.jsonl") << R"({"prompt": "sky", "completion": " red", "label": false})"
                                    << "\n";
  std::ofstream(at + "/pairs.jsonl")
      << R"({"prompt": "sky", "chosen": " blue", "rejected": " red"})" << "\n";
  printed({"init-model", "--preset", "tiny-llama", at + "/model"});
  std::ofstream(at + "/run.toml") << "[run]\ndir = \"" << at << "/run\"\n[model]\npath = \"" << at
                                  << "/model\"\n[data]\ntrain = [\"" << at
                                  << "/rows.jsonl\"]\ncache = \"" << at
                                  << "/cache\"\nmax_tokens = 64\n[train]\nsteps = 1\nloss = "
                                  << "\"kto\"\n";
  const std::string terminal = printed({"check", "data", at + "/run.toml"});
  const size_t title = terminal.find("row 0, undesirable");
  ASSERT_NE(title, std::string::npos) << terminal;
  EXPECT_NE(terminal.find("⟦ red", title), std::string::npos) << terminal;
  EXPECT_NE(terminal.find(" scored"), std::string::npos) << terminal;
  const std::string rows = printed({"check", "data", at + "/run.toml", "--json"});
  EXPECT_NE(rows.find("\"label\":false"), std::string::npos) << rows;
  const std::string pairs =
      printed({"check", "data", at + "/run.toml", "--data.train=[\"" + at + "/pairs.jsonl\"]"});
  EXPECT_NE(pairs.find("of up to 64 tokens"), std::string::npos) << pairs;
}

// Sequences of KTO's rows have space for their mismatched answers, as those of a run have.
TEST(CheckData, PacksRowsOfKtoWithTheirMismatchedAnswers) {
  const TemporaryDirectory directory;
  const std::string at = directory.path();
  const auto ids = [](int count) {
    std::string text = "[5";
    for (int i = 1; i < count; ++i) text += ", 6";
    return text + "]";
  };
  std::ofstream file(at + "/rows.jsonl");
  for (const int prompt : {4, 28}) {
    file << "{\"prompt_ids\": " << ids(prompt) << ", \"completion_ids\": " << ids(32 - prompt)
         << ", \"label\": true}\n";
  }
  file.close();
  printed({"init-model", "--preset", "tiny-llama", at + "/model"});
  std::ofstream(at + "/run.toml") << "[run]\ndir = \"" << at << "/run\"\n[model]\npath = \"" << at
                                  << "/model\"\n[data]\ntrain = [\"" << at
                                  << "/rows.jsonl\"]\ncache = \"" << at
                                  << "/cache\"\nmax_tokens = 64\n[train]\nsteps = 1\nloss = "
                                  << "\"kto\"\n";
  // Two rows of 32 tokens fill a sequence, but the long prompt with the long answer has 56.
  EXPECT_NE(printed({"check", "data", at + "/run.toml"}).find("2 of up to 64 tokens"),
            std::string::npos);
}

// A row of JSON has the weights of its tokens, and how much a teacher's tokens hold. A row with the
// weight 0 says that it is left out.
TEST(CheckData, ShowsWeightsAndTeachers) {
  const TemporaryDirectory directory;
  const std::string at = directory.path();
  std::ofstream(at + "/rows.jsonl") << R"({"input_ids": [5, 6, 7], "weights": [1, 0.5, 2]})"
                                    << "\n"
                                    << R"({"input_ids": [5, 6], "weight": 0})"
                                    << "\n";
  printed({"init-model", "--preset", "tiny-llama", at + "/model"});
  std::ofstream(at + "/run.toml") << "[run]\ndir = \"" << at << "/run\"\n[model]\npath = \"" << at
                                  << "/model\"\n[data]\ntrain = [\"" << at
                                  << "/rows.jsonl\"]\ncache = \"" << at
                                  << "/cache\"\nmax_tokens = 64\n[train]\nsteps = 1\n";
  const std::string rows = printed({"check", "data", at + "/run.toml", "--json"});
  EXPECT_NE(rows.find("\"weights\":[0.0,0.5,2.0]"), std::string::npos) << rows;
  EXPECT_NE(rows.find("left out: its weight is 0"), std::string::npos) << rows;
  std::ofstream(at + "/teacher.jsonl")
      << R"({"input_ids": [5, 6], "teacher_ids": [[9]], "teacher_logps": [[0]]})" << "\n";
  const std::string taught = printed(
      {"check", "data", at + "/run.toml", "--json", "--data.train=[\"" + at + "/teacher.jsonl\"]"});
  EXPECT_NE(taught.find("\"teacher\":[0.0,1.0]"), std::string::npos) << taught;
}

// `prepare` prints for each file what was added, where, and how many samples.
TEST(Prepare, PrintsWhatWasAddedToEachFile) {
  const TemporaryDirectory directory;
  const std::string at = directory.path();
  const std::string row = R"({"messages": [{"role": "user", "content": "a"}, )"
                          R"({"role": "assistant", "content": "<think>\nb\n</think>\n\nc"}, )"
                          R"({"role": "user", "content": "d"}, )"
                          R"({"role": "assistant", "content": "<think>\ne\n</think>\n\nf"}]})";
  for (const char* name : {"/one.jsonl", "/two.jsonl"}) std::ofstream(at + name) << row << "\n";
  printed({"init-model", "--preset", "tiny-llama", at + "/model"});
  std::ofstream(at + "/run.toml")
      << "[run]\ndir = \"" << at << "/run\"\n[model]\npath = \"" << at
      << "/model\"\n[data]\ntrain = [\"" << at << "/one.jsonl\", \"" << at
      << "/two.jsonl\"]\ncache = \"" << at << "/cache\"\nmax_tokens = 1024\nchat_template = \""
      << test_data() << "/text/published_templates/qwen3.jinja\"\n[train]\nsteps = 2\n";
  EXPECT_NE(printed({"plan", at + "/run.toml"}).find("data\n  not prepared yet"),
            std::string::npos);
  // A file that changed just now is not recorded as known, so that `plan` would not know its data.
  std::this_thread::sleep_for(std::chrono::milliseconds(4200));
  const std::string text = printed({"prepare", at + "/run.toml"});
  const std::string several = "1 conversations are several samples each";
  const size_t first = text.find(several);
  const size_t first_place = text.find("\n  in ");
  const size_t second = text.find(several, first + 1);
  const size_t second_place = text.find("\n  in ", first_place + 1);
  ASSERT_NE(second, std::string::npos) << text;
  ASSERT_NE(second_place, std::string::npos) << text;
  EXPECT_LT(first, first_place) << text;
  EXPECT_LT(first_place, second) << text;
  EXPECT_LT(second, second_place) << text;
  const std::string plan = printed({"plan", at + "/run.toml"});
  EXPECT_NE(plan.find("data\n  2 files: format messages (auto), 2 rows, "), std::string::npos)
      << plan;
  EXPECT_NE(plan.find("2 conversations are several samples each, with "), std::string::npos)
      << plan;
  EXPECT_EQ(plan.find("train.epochs ="), std::string::npos) << plan;
  // Prepared data say how many steps its epochs are: four samples, each a sequence, three times.
  const std::string epochs = printed({"plan", at + "/run.toml", "--train.epochs=3",
                                      "--data.packing=false", "--train.sequences_per_step=1"});
  EXPECT_NE(epochs.find("  train.epochs = 3: 12 steps of 1 sequences\n"), std::string::npos)
      << epochs;
  // So do files that are mixed: 1 row of the second in 3 of the first, with two samples each.
  const std::string mixed = printed({"plan", at + "/run.toml", "--train.epochs=1",
                                     "--data.packing=false", "--train.sequences_per_step=1",
                                     "--data.mix=restart", "--data.probabilities=[0.75, 0.25]"});
  EXPECT_NE(mixed.find("  data.mix = \"restart\": an epoch has 4 rows: 3 of "), std::string::npos)
      << mixed;
  EXPECT_NE(mixed.find("  train.epochs = 1: 8 steps of 1 sequences\n"), std::string::npos) << mixed;
}

}  // namespace
}  // namespace longshore
