// The report page and the model card: their content, for runs that resumed, were killed, are of
// older versions, or hold hostile text.
#include "trainer/report/run_report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/errors.h"
#include "base/processor.h"
#include "model/losses/preference_loss.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/commands/command_line.h"
#include "trainer/metrics/metrics.h"
#include "trainer/report/model_card.h"
#include "trainer/report/page.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

class WrittenRun {
 public:
  explicit WrittenRun(const std::string& path) : path_(path) { fs::create_directories(path); }
  const std::string& path() const { return path_; }
  WrittenRun& put(const std::string& name, const std::string& text) {
    std::ofstream(path_ + "/" + name, std::ios::binary | std::ios::app) << text;
    return *this;
  }
  // Writes steps with a loss that falls from 4 by a tenth each.
  WrittenRun& steps(int count) {
    MetricsFile file = MetricsFile::begin(path_ + "/metrics.jsonl");
    file.write(StartRecord{});
    for (int step = 1; step <= count; ++step) {
      file.write(StepRecord{.step = Step(step),
                            .loss = 4.1 - 0.1 * step,
                            .grad_norm = 1.0,
                            .lr = 1e-4,
                            .tokens = 1000,
                            .epoch = 0.1 * step,
                            .seconds = 2.0,
                            .tokens_per_second = 500.0,
                            .stall_seconds = {{"h2d", 0.5}, {"update", 0.0}},
                            .memory = {.device_peak = 90 * kMiB,
                                       .device_plan = 100 * kMiB,
                                       .host_pinned = kGiB,
                                       .host_rss = 2 * kGiB}});
    }
    return *this;
  }
  std::string page() const { return report_page({read_run_record(path_)}); }

 private:
  std::string path_;
};

void expect_has(const std::string& page, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) EXPECT_NE(page.find(text), std::string::npos) << text;
}
void expect_lacks(const std::string& page, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) EXPECT_EQ(page.find(text), std::string::npos) << text;
}

class RunReport : public ::testing::Test {
 protected:
  const TemporaryDirectory directory_;
  WrittenRun run_{directory_.file("mine")};
};

// The page shows how a run went.
TEST_F(RunReport, SaysHowARunWent) {
  run_.steps(10).put("run.json", R"({"status": "done"})");
  MetricsFile file = MetricsFile::resume(run_.path() + "/metrics.jsonl", Step(10));
  file.write(EvalRecord{.step = Step(10), .loss = 2.125, .perplexity = 8.37});
  file.write(EventRecord{.level = "info", .code = "sample", .text = "Once upon"});
  file.write(EventRecord{.level = "warning", .code = "step_skipped", .text = "step 3 skipped"});
  run_.put(
      "plan.json",
      R"({"parameters": 8030261248, "host": {"total_bytes": 3221225472, "limit_bytes": 8589934592},
                            "device": {"cap_bytes": 209715200}})");
  run_.put("plan.txt", "the plan's table\n").put("command.txt", "train run.toml\n");
  run_.put("env.json", R"({"libtorch": "2.11.0", "limits": {"open_files": 1024}})");
  run_.put("data.json", R"({"train": {"sequences": 7, "files": [{"path": "a.jsonl",
                            "xxh3": "0123456789abcdef", "format": "text", "rows": 12345}]}})");
  run_.put("config.toml", "[model]\npath = \"models/some\"\n[optimizer]\nlr = 0.0001\n");
  const std::string page = run_.page();
  expect_has(page, {"<dd>done</dd>",
                    "<dd>models/some</dd>",
                    "<dd>8 030 261 248</dd>",
                    "<dd>longshore train run.toml",
                    " UTC</dd>",
                    "<dd>4.0000</dd>",
                    "<dd>3.1000</dd>",
                    "<dd>2.1250</dd>",
                    "<dd>10 000</dd>",
                    "<dd>20.0 s</dd>",
                    "computes, and the rest 75.0 %",
                    "waits for h2d 25.0 %",
                    "<dd>100.0 MiB</dd>",
                    "<dd>90.0 MiB</dd>",
                    "<dd>3.0 GiB</dd>",
                    "<dd>8.0 GiB</dd>",
                    "the plan&#39;s table",
                    "Once upon",
                    "step 3 skipped",
                    "<dd>2.11.0</dd>",
                    "limits.open_files",
                    "12 345",
                    "0123456789abcdef",
                    "<p>train, sequences 7</p>",
                    "longshore train run.toml",
                    "<figcaption>loss</figcaption>",
                    "<figcaption>evaluation loss</figcaption>",
                    "text-anchor='end'>step</text>",
                    "step 10\nmine: 3.1</title>"});
  expect_lacks(page, {"waits for update", "nan", "http", "src=", "<script", "@import", "url("});
}

// Goal: the report of a run of DPO shows chosen and rejected beside each other, the margin of each
// evaluation, the loss function, the adapter and the lowest evaluation.
TEST_F(RunReport, ShowsChosenAndRejectedOfPreferences) {
  const FigureValues means = figures_of({.chosen_reward = -0.5,
                                         .rejected_reward = -0.75,
                                         .margin = 0.25,
                                         .accuracy = 0.875,
                                         .chosen_logp = -12.5,
                                         .rejected_logp = -16.0,
                                         .kl = std::nan("")});
  MetricsFile file = MetricsFile::begin(run_.path() + "/metrics.jsonl");
  for (int step = 1; step <= 3; ++step) {
    file.write(StepRecord{.step = Step(step), .loss = 0.6, .figures = means});
    file.write(EvalRecord{.step = Step(step), .loss = 0.0625 * step, .figures = means});
  }
  run_.put("config.toml",
           "[train]\nloss = \"dpo\"\n[adapter]\nkind = \"lora\"\npath = \"new\"\nr = 8\n"
           "base = \"nf4\"\n");
  const std::string page = run_.page();
  expect_has(page, {"rewards: chosen, and rejected dashed</figcaption>",
                    "log-probabilities: chosen, and rejected dashed</figcaption>",
                    "mine: -0.5\nmine, rejected: -0.75</title>",
                    "mine: -12.5\nmine, rejected: -16</title>", "<th>margin</th>",
                    "<td>0.2500</td>", "<td>0.875</td>", "<dd>dpo</dd>",
                    "<dd>lora, r 8, base nf4</dd>", "evaluation loss, lowest", "<dd>0.0625</dd>"});
  expect_lacks(page, {"least", "nan"});
}

// Goal: evaluations of a run of SFT have their token accuracy.
TEST_F(RunReport, ShowsTheTokenAccuracyOfEvaluations) {
  run_.steps(2);
  MetricsFile file = MetricsFile::resume(run_.path() + "/metrics.jsonl", Step(2));
  file.write(EvalRecord{.step = Step(1), .loss = 2.5, .perplexity = 12.18});
  file.write(
      EvalRecord{.step = Step(2), .loss = 2.125, .perplexity = 8.37, .token_accuracy = 0.40625});
  const std::string page = run_.page();
  expect_has(page, {"<th>token accuracy</th>", "<td>8.37</td><td>0.4062</td>"});
  EXPECT_NE(page.find("<td>12.18</td><td></td>"), std::string::npos) << "no value of another step";
}

// Goal: the page of an unfinished or killed run shows the data that exists.
TEST_F(RunReport, TakesRunsThatAreNotWhole) {
  run_.steps(3).put("metrics.jsonl", R"({"kind":"step","step":4,"loss":9.75,"ti)");
  expect_has(run_.page(), {"<dd>unknown</dd>", "<dd>3.8000</dd>"});
  ASSERT_NE(host_name(), "");
  const std::string here = R"(, "host": ")" + host_name() + R"("})";
  run_.put("run.json", R"({"status": "running", "pid": )" + std::to_string(::getpid()) + here);
  expect_has(run_.page(), {"<dd>running</dd>"});
  fs::remove(run_.path() + "/run.json");
  run_.put("run.json", R"({"status": "running", "pid": 4194305)" + here);  // above every process id
  expect_has(run_.page(), {"<dd>killed</dd>"});
  fs::remove(run_.path() + "/metrics.jsonl");
  run_.put("metrics.jsonl", "");
  expect_has(run_.page(), {"No step has finished yet."});
  fs::remove(run_.path() + "/metrics.jsonl");
  EXPECT_THROW(run_.page(), DataError);
}

// Goal: missing keys of older versions and unknown keys of newer ones do no harm.
TEST_F(RunReport, TakesRunsOfOtherVersions) {
  run_.put("metrics.jsonl", R"({"kind":"step","step":1,"loss":2.5}
{"kind":"step","step":2,"loss":null,"grad_norm":1e300,"memory_bytes":7,"stall_seconds":{"x":"y"}}
{"kind":"step","step":3,"loss":1.5,"waited_seconds":["a"],"slowest_rank":{"rank":{}},"new":[1]}
{"kind":"step","step":"four"}
{"kind":"eval","step":3}
)");
  run_.put("env.json", "[1, 2").put("data.json", R"({"train": {"files": [3, {"path": {}}]}})");
  run_.put("plan.json", R"({"host": []})").put("config.toml", "\xff\xfe");
  const std::string page = run_.page();
  expect_has(page, {"<dd>2.5000</dd>", "<dd>1.5000</dd>"});
  expect_lacks(page, {"nan", "inf<", ">nan"});
}

// Goal: no text of a file becomes markup of the page.
TEST_F(RunReport, EscapesEverythingThatFilesSay) {
  const std::string hostile = "<script>alert('x')</script>\\\" onload=\\\"y";
  WrittenRun run(directory_.file("<b>name's"));
  run.steps(2);
  run.put("metrics.jsonl", R"({"kind":"event","code":"sample","text":")" + hostile + "\"}\n" +
                               R"({"kind":"event","code":"<i>","level":"<i>","text":"<i>)" +
                               hostile + "\"}\n" +
                               R"({"kind":"step","step":3,"loss":1,"seconds":9,"time":1,)" +
                               R"("stall_seconds":{"<i>lane":1},"waited_seconds":[1],)" +
                               R"("slowest_rank":{"rank":0,"resource":"<i>"}})" + "\n");
  run.put("run.json", R"({"status":"<i>s","message":"<i>m"})");
  run.put("env.json", R"({"<i>key": "<i>value"})");
  run.put("data.json", R"({"<i>use": {"<i>k": "<i>", "files": [{"path": "<i>p"}]}})");
  run.put("config.toml", "[<i>]\n<i> = \"<i>\"\n").put("command.txt", "<i>");
  run.put("plan.txt", "<i>plan");
  const std::string page = report_page({read_run_record(run.path()), read_run_record(run.path())});
  expect_lacks(page, {"<script", "<i>", "<b>", "' onload", "\" onload=\"y"});
  expect_has(page, {"&lt;script&gt;", "&lt;i&gt;plan"});
}

// Goal: control characters of data and messages are shown as their pictures; other text stays.
TEST(EscapedHtml, ShowsControlCharactersAsPictures) {
  EXPECT_EQ(escape_html(std::string("a\0b\x1b[2J\x7f\r", 9)), "a&#9216;b&#9243;[2J&#x2421;&#9229;");
  EXPECT_EQ(escape_html("caf\u00e9\n\t<"), "caf\u00e9\n\t&lt;");
}

// The page compares several runs and their configurations.
TEST_F(RunReport, ComparesRunsAndTheirConfigurations) {
  WrittenRun other(directory_.file("other"));
  run_.steps(3).put("config.toml", "[optimizer]\nlr = 0.0001\nbeta1 = 0.9\n");
  other.steps(5).put("config.toml", "[optimizer]\nlr = 0.0003\nbeta1 = 0.9\nnew = 1\n");
  const std::string page =
      report_page({read_run_record(run_.path()), read_run_record(other.path())});
  expect_has(page, {"<th>optimizer.lr</th><td>0.0001</td><td>0.0003</td>",
                    "<th>optimizer.new</th><td>–</td><td>1</td>", "--c1)", "mine", "other",
                    "<th>steps</th><td>3</td><td>5</td>"});
  expect_lacks(page, {"<th>optimizer.beta1</th>"});
}

// Goal: a lane has the same colour in every run, whatever its rank in a run's waits.
TEST_F(RunReport, ALaneHasOneColourInEveryRun) {
  const auto line = [](const char* waits) {
    return std::string(R"({"kind":"step","step":1,"loss":1,"seconds":10,"stall_seconds":)") +
           waits + "}\n";
  };
  run_.put("metrics.jsonl", line(R"({"update": 3, "h2d": 1})"));
  WrittenRun other(directory_.file("other"));
  other.put("metrics.jsonl", line(R"({"update": 1, "h2d": 3, "read": 2})"));
  for (const std::string& page : {run_.page(), other.page()}) {
    expect_has(page,
               {"--c1)'></i>waits for h2d", "--c2)'></i>waits for update", "--c0)'></i>computes"});
  }
}

// Goal: the page of a run of a month stays small enough for a browser, and spikes are visible.
TEST_F(RunReport, LongRunsAreThinnedButKeepTheirExtremes) {
  std::ofstream file(run_.path() + "/metrics.jsonl");
  for (int step = 1; step <= 50000; ++step) {
    file << R"({"kind":"step","step":)" << step << R"(,"loss":2,"lr":)" << (step == 31234 ? 900 : 2)
         << "}\n";
  }
  file.close();
  const std::string page = run_.page();
  EXPECT_LT(page.size(), 200'000U);
  expect_has(page, {"<dd>2.0000</dd>"});
  const Chart chart{.title = "lr",
                    .lines = {{.name = "a", .points = read_run_record(run_.path()).of("lr")}}};
  // The spike is drawn at the top of the picture.
  const std::string svg = draw_chart(chart);
  EXPECT_NE(svg.find(" 17.2L"), std::string::npos) << svg.substr(0, 3000);
}

// Goal: no two ticks of an axis have one label, however near each other the values are.
TEST(LineChart, LabelsTellTicksApart) {
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{
           {11.3288, 11.3475}, {1.0, 1.00002}, {123456.0, 123457.0}, {-0.5, 0.5}, {1e-9, 3e-9}}) {
    const std::string svg =
        draw_chart({.title = "t", .lines = {{.name = "a", .points = {{1, low}, {12345, high}}}}});
    std::vector<std::string> labels;
    for (size_t at = 0; (at = svg.find("text-anchor='end'>", at)) != std::string::npos;) {
      at += std::string("text-anchor='end'>").size();
      labels.push_back(svg.substr(at, svg.find('<', at) - at));
    }
    EXPECT_GE(labels.size(), 3u) << svg;
    std::ranges::sort(labels);
    EXPECT_EQ(std::ranges::adjacent_find(labels), labels.end()) << low << ": " << svg;
  }
}

// The chart draws gaps, single points and constant values.
TEST(LineChart, DrawsGapsSinglePointsAndLevels) {
  const double gap = std::numeric_limits<double>::quiet_NaN();
  const auto drawn = [](std::vector<ChartPoint> points) {
    return draw_chart({.title = "t", .lines = {{.name = "a", .points = std::move(points)}}});
  };
  const auto count = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  const std::string gapped = drawn({{1, 2}, {2, 3}, {3, gap}, {4, 1}});
  const size_t begin = gapped.find("' d='M") + 5;
  EXPECT_EQ(count(gapped.substr(begin, gapped.find('\'', begin) - begin), "M"), 2) << "two pieces";
  EXPECT_EQ(count(gapped, "<circle "), 1) << "the one that is a point";
  EXPECT_EQ(count(drawn({{7, 2}}), "<circle "), 1);
  EXPECT_EQ(count(drawn({{1, 2}, {2, 3}}), "<circle "), 0);
  EXPECT_EQ(drawn({{1, gap}}), "");
  EXPECT_EQ(drawn({}), "");
  EXPECT_EQ(drawn({{1, 0}, {2, 0}}).find("nan"), std::string::npos);
  // No step of the grid can separate neighbouring numbers.
  EXPECT_EQ(drawn({{1, 1.0}, {2, std::nextafter(1.0, 2.0)}}).find("nan"), std::string::npos);
}

// The report command writes the page to the given path.
TEST(ReportCommand, WritesThePageWhereItIsTold) {
  const TemporaryDirectory directory;
  WrittenRun run(directory.file("mine"));
  run.steps(2);
  const auto page_at = [](const std::string& path) {
    std::ifstream file(path);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  EXPECT_EQ(run_command_line({"report", run.path()}), 0);
  expect_has(page_at(run.path() + "/report.html"), {"<title>mine</title>", "</html>"});
  const std::string victim = directory.file("victim");
  std::ofstream(victim) << "precious";
  std::filesystem::remove(run.path() + "/report.html");
  std::filesystem::create_symlink(victim, run.path() + "/report.html");
  EXPECT_EQ(run_command_line({"report", run.path()}), 0);
  EXPECT_EQ(page_at(victim), "precious") << "nothing is written through a link in run.dir";
  expect_has(page_at(run.path() + "/report.html"), {"</html>"});
  EXPECT_EQ(run_command_line({"report", run.path(), run.path(), "--to", directory.file("page")}),
            0);
  expect_has(page_at(directory.file("page")), {"<title>Runs compared</title>"});
  EXPECT_NE(run_command_line({"report", directory.file("nowhere")}), 0);
}

// The model card has the run's facts without private paths.
TEST_F(RunReport, TheModelCardTellsWhatTheRunTells) {
  run_.steps(10);
  run_.put("config.toml",
           "[run]\nseed = 42\n[model]\npath = \"/home/me/m\"\n[data]\ntrain = [\"/home/me/a\"]\n"
           "max_tokens = 64\n[optimizer]\nlr = 0.0001\n[offload]\nnvme = [\"/home/me/n\"]\n");
  run_.put("data.json", R"({"train": {"files": [{"path": "/home/me/a|b.jsonl", "rows": 5,
                            "xxh3": "0123456789abcdef"}]}})");
  const CardBase base{.name = "maker/base-1b",
                      .on_hub = true,
                      .card = "---\nlicense: apache-2.0\ntags:\n- x\nlanguage: en\n---\n# Base\n",
                      .family = "llama",
                      .parameters = 1234567};
  const std::string card = model_card(read_run_record(run_.path()), base, Step(8));
  EXPECT_TRUE(
      card.starts_with("---\nlibrary_name: transformers\npipeline_tag: text-generation\n"
                       "base_model: maker/base-1b\nlicense: apache-2.0\nlanguage: en\n"
                       "tags:\n- longshore\n---\n\n# mine\n"))
      << card;
  expect_has(card,
             {"1 234 567 parameters", "BASE_README.md", "| steps | 8 |", "| tokens seen | 8 000 |",
              "| `optimizer.lr` | `0.0001` |", "| `data.max_tokens` | `64` |",
              "| `run.seed` | `42` |", "| `a\\|b.jsonl` |  | 5 |  |  |  | 0123456789abcdef |"});
  expect_lacks(card, {"/home/me", "offload.nvme"});
  const std::string own = model_card(read_run_record(run_.path()), {.family = "llama"}, Step(8));
  expect_has(own, {"Trained from random weights"});
  expect_lacks(own, {"base_model", "BASE_README"});
}

// Goal: card and page distinguish held-out from trained data; templates are named without folder.
TEST_F(RunReport, SaysWhichPartOfTheFilesWasEvaluated) {
  run_.steps(10);
  run_.put("config.toml",
           "[data]\nchat_template = \"/home/me/t.jinja\"\n[eval]\nsplit = 0.02\nsequences = 9\n");
  const std::string file = R"("files": [{"path": "a.jsonl", "documents": 480, "tokens": 18944,
                            "trained_tokens": 5308}])";
  run_.put("data.json", R"({"train": {)" + file +
                            R"(, "part": {"held_out": false, "eval_split": 0.02, "documents": 470,
                  "tokens": 18500, "trained_tokens": 5199}},
               "eval": {)" + file +
                            R"(, "part": {"held_out": true, "eval_split": 0.02, "documents": 10,
                  "tokens": 444, "trained_tokens": 109}}})");
  const CardBase base{.family = "llama", .use = {"Texts end with <|end|>."}};
  const std::string card = model_card(read_run_record(run_.path()), base, Step(8));
  expect_has(
      card,
      {"Trained on, without the rows held out by eval.split = 0.02: 470 documents, 18 500 "
       "tokens, 5 199 trained tokens:",
       "Evaluated on rows of these files that were held out by eval.split = 0.02 and "
       "never trained: 10 documents, 444 tokens, 109 trained tokens.",
       "| `eval.split` | `0.02` |", "| `eval.sequences` | `9` |",
       "| `data.chat_template` | `\"t.jinja\"` |", "## Use\n\n- Texts end with \\<\\|end\\|\\>."});
  expect_lacks(card, {"/home/me"});
  EXPECT_EQ(card.find("18 944"), card.rfind("18 944"))
      << "whole files once, where they are trained";
  EXPECT_EQ(run_command_line({"report", run_.path()}), 0);
  std::ifstream page_file(run_.path() + "/report.html");
  const std::string page{std::istreambuf_iterator<char>(page_file), {}};
  expect_has(page,
             {"held out by eval.split = 0.02 and never trained: 10 documents",
              "without the rows held out by eval.split = 0.02: 470 documents", "tokens seen"});
  EXPECT_EQ(page.find("18 944"), page.rfind("18 944"));
}

}  // namespace
}  // namespace longshore
