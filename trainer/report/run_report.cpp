#include "trainer/report/run_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/texts.h"
#include "model/losses/losses.h"
#include "trainer/directory/run_directory.h"
#include "trainer/metrics/metrics.h"
#include "trainer/report/line_chart.h"
#include "trainer/report/page.h"

namespace longshore {
namespace {

constexpr size_t kMostSamples = 24, kMostWarnings = 50, kMostEvaluations = 12;

constexpr const char* kStyle = R"(
body { max-width: 84rem; }
.runs { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; padding: 0; list-style: none; }
.runs i, .split i { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem;
  margin-right: .4rem; vertical-align: -.08rem; }
.bar { display: flex; height: 1.4rem; border-radius: .3rem; overflow: hidden; margin: .4rem 0; }
.bar span { min-width: 1px; }
.split { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .85rem; }
blockquote { border-left: 3px solid var(--line); margin: .6rem 0; padding: .1rem .8rem; }
h3 { font-size: 1rem; font-weight: 500; margin: 1rem 0 .3rem; }
details { margin: .6rem 0; } summary { cursor: pointer; } .note { opacity: .7; font-size: .85rem; }
)";

using Points = std::vector<ChartPoint>;

std::string shown(const std::string& text) {
  return escape_html(printable_lines(text));
}

std::string name_of(const RunRecord& run) {
  const std::string name =
      std::filesystem::path(run.directory).lexically_normal().filename().string();
  return printable(name.empty() || name == "." ? run.directory : name);
}

// Returns "–" if the value is unknown.
std::string or_dash(double value, const std::function<std::string(double)>& text) {
  return std::isfinite(value) ? text(value) : "–";
}

std::string number(double value, const char* pattern) {
  return or_dash(value, [pattern](double known) { return formatted(pattern, known); });
}

std::string bytes_text(double value) {
  return or_dash(value, [](double known) {
    return format_bytes(static_cast<Bytes>(std::llround(std::max(0.0, known))));
  });
}

std::string duration_text(double seconds) {
  return or_dash(seconds, [](double known) {
    const auto whole = static_cast<long long>(known);
    if (whole >= 3600) return formatted("%lld h %02lld min", whole / 3600, whole / 60 % 60);
    if (whole >= 60) return formatted("%lld min %02lld s", whole / 60, whole % 60);
    return formatted("%.1f s", known);
  });
}

std::string time_text(double seconds) {
  constexpr double kMost = 1e11;  // a year of four digits
  if (!std::isfinite(seconds) || seconds < 0.0 || seconds > kMost) return "–";
  const auto whole = static_cast<time_t>(seconds);
  std::tm utc{};
  std::array<char, 64> text{};
  if (::gmtime_r(&whole, &utc) == nullptr) return "–";
  const size_t bytes = std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &utc);
  return {text.data(), bytes};
}

// Returns the value of a key of the run file, without quotes; empty if the run has none.
std::string key_of(const RunRecord& run, const char* key) {
  const std::map<std::string, std::string> values = config_values(run.config);
  const auto found = values.find(key);
  if (found == values.end()) return "";
  const std::string& written = found->second;  // as in the run file: a text is in quotes
  const bool quoted = written.size() >= 2 && written.front() == '"' && written.back() == '"';
  return quoted ? written.substr(1, written.size() - 2) : written;
}

// Returns "lora, r 8, over nf4"; empty for a run in full.
std::string adapter_of(const RunRecord& run) {
  const std::string kind = key_of(run, "adapter.kind"), path = key_of(run, "adapter.path");
  const bool continued = !path.empty() && path != "new";
  if (!continued && (kind.empty() || kind == "none")) return "";
  const std::string base = key_of(run, "adapter.base");
  const std::string over = base.empty() ? "" : ", base " + base;
  return continued ? "continues " + path + over : kind + ", r " + key_of(run, "adapter.r") + over;
}

double member(const Json& object, const char* group, const char* key) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (!object.is_object()) return kNone;
  const auto found = object.find(group);
  if (found == object.end() || !found->is_object()) return kNone;
  const auto value = found->find(key);
  return value != found->end() && value->is_number() ? value->get<double>() : kNone;
}

double first_of(const Points& points) {
  const auto found =
      std::ranges::find_if(points, [](const ChartPoint& point) { return std::isfinite(point.y); });
  return found == points.end() ? std::numeric_limits<double>::quiet_NaN() : found->y;
}

using Facts = std::vector<std::pair<std::string, std::function<std::string(const RunRecord&)>>>;

// Shows one run's facts in boxes; several runs as table columns, without rows unknown to all.
std::string facts_of(const std::vector<RunRecord>& runs, const Facts& facts) {
  std::vector<Fact> boxes;
  std::vector<std::string> head = {""};
  for (const RunRecord& run : runs) head.push_back(escape_html(name_of(run)));
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, of] : facts) {
    std::vector<std::string> row = {escape_html(name)};
    bool known = false;
    for (const RunRecord& run : runs) {
      const std::string text = printable_lines(of(run));
      known = known || (text != "–" && !text.empty());
      row.push_back(escape_html(text));
      if (known) boxes.push_back({name, text});
    }
    if (known) rows.push_back(std::move(row));
  }
  if (rows.empty()) return "";
  return runs.size() == 1 ? fact_boxes(boxes) : table_of(head, rows);
}

std::string section(const std::vector<RunRecord>& runs, const char* title,
                    std::string (*of)(const RunRecord&)) {
  std::string html;
  for (const RunRecord& run : runs) {
    const std::string part = of(run);
    if (runs.size() > 1 && !part.empty()) html += "<h3>" + escape_html(name_of(run)) + "</h3>";
    html += part;
  }
  return html.empty() ? "" : "<h2>" + std::string(title) + "</h2>" + html;
}

std::string summary(const std::vector<RunRecord>& runs) {
  return facts_of(
      runs,
      {{"model", [](const RunRecord& run) { return key_of(run, "model.path"); }},
       {"loss function", [](const RunRecord& run) { return key_of(run, "train.loss"); }},
       {"adapter", adapter_of},
       {"parameters",
        [](const RunRecord& run) {
          const bool known = run.plan.is_object() && run.plan.contains("parameters") &&
                             run.plan["parameters"].is_number_integer();
          return known ? format_count(run.plan["parameters"].get<int64_t>()) : "–";
        }},
       {"command",
        [](const RunRecord& run) {
          return run.command.empty() ? std::string() : "longshore " + run.command;
        }},
       {"begun", [](const RunRecord& run) { return time_text(run.begun); }},
       {"newest record", [](const RunRecord& run) { return time_text(run.newest); }},
       {"status", [](const RunRecord& run) { return run.status; }},
       {"message", [](const RunRecord& run) { return run.message; }},
       {"steps", [](const RunRecord& run) { return format_count(run.last_step()); }},
       {"starts", [](const RunRecord& run) { return std::to_string(run.starts); }},
       {"loss, first",
        [](const RunRecord& run) { return or_dash(first_of(run.of("loss")), format_loss); }},
       {"loss, last",
        [](const RunRecord& run) { return or_dash(last_of(run.of("loss")), format_loss); }},
       {"evaluation loss, lowest",
        [](const RunRecord& run) { return or_dash(lowest_of(run.of("eval/loss")), format_loss); }},
       {"perplexity, lowest",
        [](const RunRecord& run) { return number(lowest_of(run.of("eval/perplexity")), "%.2f"); }},
       {"token accuracy, last",
        [](const RunRecord& run) {
          return number(last_of(run.of("eval/token_accuracy")), "%.4f");
        }},
       {"tokens seen",
        [](const RunRecord& run) {
          return format_count(static_cast<int64_t>(sum_of(run.of("tokens"))));
        }},
       {"epochs", [](const RunRecord& run) { return number(last_of(run.of("epoch")), "%.3f"); }},
       {"tokens/s, median",
        [](const RunRecord& run) {
          return or_dash(median_of(run.of("tokens_per_second")),
                         [](double rate) { return format_count(std::llround(rate)); });
        }},
       {"time in steps",
        [](const RunRecord& run) { return duration_text(sum_of(run.of("seconds"))); }},
       {"skipped steps",
        [](const RunRecord& run) { return number(last_of(run.of("skipped_total")), "%.0f"); }}});
}

// Returns the running mean over a fiftieth of the points (at least one).
Points smoothed(const Points& points) {
  const size_t window = std::max<size_t>(1, points.size() / 50);
  Points means;
  double sum = 0.0;
  std::vector<double> last;
  for (const ChartPoint& point : points) {
    if (!std::isfinite(point.y)) continue;
    last.push_back(point.y);
    sum += point.y;
    if (last.size() > window) sum -= last[last.size() - window - 1];
    means.push_back({point.x, sum / static_cast<double>(std::min(last.size(), window))});
  }
  return means;
}

struct Curve {
  std::string key, title;
  Chart::Unit unit = Chart::Unit::kNumber;
  bool from_zero = false, smooth = false;
  std::string other = {}, other_name = {};  // a second key, drawn dashed, and its name
};

std::string draw_curve(const std::vector<RunRecord>& runs, const Curve& curve) {
  constexpr size_t kNoisy = 200;
  Chart chart{.title = curve.title, .unit = curve.unit, .from_zero = curve.from_zero, .lines = {}};
  for (size_t i = 0; i < runs.size(); ++i) {
    const Points& points = runs[i].of(curve.key);
    const bool smooth = curve.smooth && points.size() > kNoisy;
    ChartLine line{.name = name_of(runs[i]), .colour = i % kChartColours, .points = points};
    if (smooth) {
      ChartLine raw = line;
      raw.name.clear();
      raw.style = ChartLine::Style::kFaint;
      chart.lines.push_back(std::move(raw));
      line.points = smoothed(points);
    }
    chart.lines.push_back(std::move(line));
    if (curve.other.empty()) continue;
    chart.lines.push_back(
        {.name = name_of(runs[i]) + ", " + curve.other_name,
         .colour = i % kChartColours,
         .style = ChartLine::Style::kDashed,
         .points = smooth ? smoothed(runs[i].of(curve.other)) : runs[i].of(curve.other)});
  }
  return draw_chart(chart);
}

std::string curves(const std::vector<RunRecord>& runs) {
  const auto bytes = Chart::Unit::kBytes;
  std::vector<Curve> all = {
      {.key = "loss", .title = "loss", .smooth = true},
      {.key = "eval/loss", .title = "evaluation loss"},
      {.key = "eval/token_accuracy", .title = "evaluation token accuracy", .from_zero = true},
      {.key = "token_accuracy", .title = "token accuracy", .from_zero = true, .smooth = true},
      {.key = "entropy", .title = "entropy of predictions", .from_zero = true, .smooth = true},
      {.key = "sft_loss", .title = "SFT loss of the chosen answers", .smooth = true},
      {.key = "rewards/chosen",
       .title = "rewards: chosen, and rejected dashed",
       .smooth = true,
       .other = "rewards/rejected",
       .other_name = "rejected"},
      {.key = "logps/chosen",
       .title = "log-probabilities: chosen, and rejected dashed",
       .smooth = true,
       .other = "logps/rejected",
       .other_name = "rejected"},
      {.key = "rewards/margins", .title = "margin of rewards", .smooth = true},
      {.key = "rewards/accuracies",
       .title = "share of pairs with the higher reward for the chosen answer",
       .from_zero = true,
       .smooth = true},
      {.key = "kl", .title = "kl of KTO", .from_zero = true, .smooth = true},
      {.key = "lr", .title = "learning rate", .from_zero = true},
      {.key = "grad_norm",
       .title = "gradient norm before clipping",
       .from_zero = true,
       .smooth = true},
      {.key = "tokens_per_second", .title = "tokens per second", .from_zero = true, .smooth = true},
      {.key = "memory_bytes/device_peak",
       .title = "device memory: peak, and the plan dashed",
       .unit = bytes,
       .from_zero = true,
       .other = "memory_bytes/device_plan",
       .other_name = "plan"},
      {.key = "memory_bytes/host_rss",
       .title = "host memory: resident",
       .unit = bytes,
       .from_zero = true}};
  constexpr std::string_view kSets = "eval/sets/", kLoss = "/loss";
  std::map<std::string, std::string> names;  // of eval.sets, by key
  for (const RunRecord& run : runs) {
    for (const auto& [key, points] : run.series) {
      if (!key.starts_with(kSets) || !key.ends_with(kLoss)) continue;
      const size_t size = key.size() - kSets.size() - kLoss.size();
      names[key] = key.substr(kSets.size(), size);
    }
  }
  for (const auto& [key, name] : names) {
    all.push_back({.key = key, .title = "evaluation loss of " + name});
  }
  std::string html;
  for (const Curve& curve : all) html += draw_curve(runs, curve);
  return html.empty() ? "<p>No step has finished yet.</p>"
                      : "<div class='charts'>" + html + "</div>";
}

std::string legend(const std::vector<RunRecord>& runs) {
  if (runs.size() == 1) return "<p class='note'>" + shown(runs[0].directory) + "</p>";
  std::string html = "<ul class='runs'>";
  for (size_t i = 0; i < runs.size(); ++i) {
    html += "<li><i style='background:var(--c" + std::to_string(i % kChartColours) + ")'></i>" +
            escape_html(name_of(runs[i])) + " <span class='note'>" + shown(runs[i].directory) +
            "</span></li>";
  }
  return html + "</ul>";
}

// Returns the colour of a lane, which is the same in every run. The first is that of compute.
size_t colour_of_lane(std::string_view lane) {
  constexpr std::array<std::string_view, kChartColours> kLanes = {
      "compute", "h2d", "update", "read", "d2h", "gather", "write", "reduce"};
  const auto found = std::ranges::find(kLanes, lane);
  return static_cast<size_t>(found - kLanes.begin()) % kChartColours;
}

struct TimePart {
  std::string name;
  double seconds = 0.0;
  size_t colour = 0;
};

// Shows compute's waits by lane as shares of the time in steps. The rest is compute and host work
// between steps.
std::string time_split(const RunRecord& run) {
  constexpr std::string_view kGroup = "stall_seconds/";
  const double total = sum_of(run.of("seconds"));
  if (!(total > 0.0)) return "";
  std::vector<TimePart> parts;
  double rest = total;
  for (const auto& [key, points] : run.series) {
    if (!key.starts_with(kGroup)) continue;
    const double seconds = std::clamp(sum_of(points), 0.0, rest);
    const std::string lane = key.substr(kGroup.size());
    if (seconds > 0.0) parts.push_back({"waits for " + lane, seconds, colour_of_lane(lane)});
    rest -= seconds;
  }
  std::ranges::sort(parts, {}, [](const TimePart& part) { return -part.seconds; });
  parts.insert(parts.begin(), {"computes, and the rest", rest, colour_of_lane("compute")});
  std::string bar = "<div class='bar'>", words = "<div class='split'>";
  for (const auto& [name, seconds, index] : parts) {
    const std::string colour = "background:var(--c" + std::to_string(index) + ")";
    const std::string width = formatted("%.3f%%", 100.0 * seconds / total);
    bar += "<span style='width:" + width + ";" + colour + "'></span>";
    words += "<span><i style='" + colour + "'></i>" + shown(name) + " " + percent(seconds / total) +
             "</span>";
  }
  return bar + "</div>" + words + "</div>";
}

std::string ranks_table(const RunRecord& run) {
  if (run.waited_by_rank.empty()) return "";
  const double total = sum_of(run.of("seconds"));
  std::vector<std::vector<std::string>> rows;
  for (const auto& [rank, seconds] : run.waited_by_rank) {
    rows.push_back({"rank " + rank, duration_text(seconds), percent(seconds / total)});
  }
  std::ranges::sort(rows, {}, [](const auto& row) { return std::pair(row[0].size(), row[0]); });
  std::string html = table_of({"", "waited for others", "of the time"}, rows);
  std::vector<std::pair<int64_t, std::string>> slowest;
  for (const auto& [who, steps] : run.slowest) slowest.emplace_back(-steps, who);
  std::ranges::sort(slowest);
  html += "<p class='note'>slowest: ";
  for (size_t i = 0; i < std::min<size_t>(slowest.size(), 8); ++i) {
    html += (i == 0 ? "" : ", ") + shown(slowest[i].second) + " in " +
            format_count(-slowest[i].first) + " steps";
  }
  return html + "</p>";
}

std::string time_of(const RunRecord& run) {
  return time_split(run) + ranks_table(run);
}

std::string memory(const std::vector<RunRecord>& runs) {
  const auto planned = [](const char* tier, const char* key) {
    return [=](const RunRecord& run) { return bytes_text(member(run.plan, tier, key)); };
  };
  const auto greatest = [](const char* key) {
    return [=](const RunRecord& run) {
      double most = std::numeric_limits<double>::quiet_NaN();
      for (const ChartPoint& point : run.of(key)) most = std::fmax(most, point.y);
      return bytes_text(most);
    };
  };
  const std::string table =
      facts_of(runs, {{"device: plan", greatest("memory_bytes/device_plan")},
                      {"device: peak", greatest("memory_bytes/device_peak")},
                      {"device: limit", planned("device", "cap_bytes")},
                      {"host: plan", planned("host", "total_bytes")},
                      {"host: resident, most", greatest("memory_bytes/host_rss")},
                      {"host: model state", greatest("memory_bytes/host_pinned")},
                      {"host: limit", planned("host", "limit_bytes")},
                      {"drives: plan", planned("nvme", "total_bytes")}});
  std::string html = table.empty() ? "" : "<h2>Memory, plan against measured</h2>" + table;
  for (const RunRecord& run : runs) {
    if (run.plan_text.empty()) continue;
    html += "<details><summary>the whole plan of " + escape_html(name_of(run)) + "</summary><pre>" +
            shown(run.plan_text) + "</pre></details>";
  }
  return html;
}

std::string evaluations(const RunRecord& run) {
  const Points& losses = run.of("eval/loss");
  if (losses.empty() && run.samples.empty()) return "";
  struct Column {
    const char *key, *title, *format;  // null: format_loss
  };
  std::vector<Column> columns = {{"eval/loss", "loss", nullptr},
                                 {"eval/perplexity", "perplexity", "%.2f"},
                                 {"eval/token_accuracy", "token accuracy", nullptr}};
  for (const LossFigure& figure : joined_arrays(kAnswerFigures, kTokenFigures)) {
    if (figure.short_name == nullptr) continue;
    columns.push_back({figure.eval_tag, figure.short_name, figure.percent ? "%.3f" : nullptr});
  }
  std::string html;
  std::vector<std::string> head = {""};
  std::vector<std::vector<std::string>> rows;
  const size_t begin = losses.size() - std::min(losses.size(), kMostEvaluations);
  for (size_t i = begin; i < losses.size(); ++i) {
    rows.push_back({"step " + format_count(static_cast<int64_t>(losses[i].x))});
  }
  for (const Column& column : columns) {
    const Points& points = run.of(column.key);
    if (points.empty()) continue;
    head.emplace_back(column.title);
    for (size_t i = begin; i < losses.size(); ++i) {
      const auto at = std::ranges::find(points, losses[i].x, &ChartPoint::x);
      rows[i - begin].push_back(at == points.end()         ? ""
                                : column.format != nullptr ? number(at->y, column.format)
                                                           : or_dash(at->y, format_loss));
    }
  }
  if (!rows.empty()) html += table_of(head, rows);
  if (losses.size() > rows.size()) {
    html += "<p class='note'>the last " + std::to_string(rows.size()) + " of " +
            std::to_string(losses.size()) + "</p>";
  }
  for (size_t i = run.samples.size();
       i-- > run.samples.size() - std::min(run.samples.size(), kMostSamples);) {
    html += "<blockquote><span class='note'>step " + format_count(run.samples[i].step) +
            "</span><pre>" + shown(run.samples[i].text) + "</pre></blockquote>";
  }
  return html;
}

std::string in_short(const Json& value) {
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

std::string data_of(const RunRecord& run) {
  if (!run.data.is_object()) return "";
  std::string html;
  for (const auto& [use, set] : run.data.items()) {
    if (!set.is_object() || !set.contains("files") || !set["files"].is_array()) continue;
    std::string title = use;
    for (const auto& [key, value] : set.items()) {
      if (!value.is_structured()) title += ", " + key + " " + in_short(value);
    }
    const RecordedPart part = part_of_files(set);
    if (!part.words.empty()) title += ", " + part.words;
    if (part.held_out) {
      html += "<p>" + shown(title) + "</p>";
      continue;
    }
    std::vector<std::vector<std::string>> rows;
    for (const Json& file : set["files"]) {
      if (!file.is_object()) continue;
      std::vector<std::string> row;
      for (const char* key : {"path", "format", "rows", "documents", "tokens", "trained_tokens",
                              "truncated", "dropped", "split", "bad_rows", "xxh3"}) {
        const auto found = file.find(key);
        if (found == file.end()) {
          row.emplace_back("–");
        } else {
          row.push_back(found->is_number_integer() ? format_count(found->get<int64_t>())
                                                   : shown(in_short(*found)));
        }
      }
      rows.push_back(std::move(row));
    }
    html += "<p>" + shown(title) + "</p>" +
            table_of({"file", "format", "rows", "documents", "tokens", "trained tokens",
                      "truncated", "dropped", "split", "bad rows", "xxh3"},
                     rows);
  }
  return html;
}

std::string warnings(const RunRecord& run) {
  std::vector<std::vector<std::string>> rows;
  for (const RunEvent& event : run.events) {
    if (rows.size() < kMostWarnings) rows.push_back({shown(event.level), shown(event.text)});
  }
  if (rows.empty()) return "";
  std::string html = table_of({"", ""}, rows);
  if (run.events.size() <= rows.size()) return html;
  return html + "<p class='note'>the first " + std::to_string(rows.size()) + " of " +
         std::to_string(run.events.size()) + "</p>";
}

// Collects nested keys as "limits.open_files" with their values as text.
void flatten(const Json& object, const std::string& prefix,
             std::map<std::string, std::string>& into) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      flatten(value, prefix + key + ".", into);
    } else {
      into[prefix + key] = in_short(value);
    }
  }
}

using TextsByKey = std::map<std::string, std::string>;

// Makes a row for each key, or only for keys whose values differ between the runs.
std::string keys_table(const std::vector<RunRecord>& runs, const std::vector<TextsByKey>& texts,
                       bool only_differences) {
  std::set<std::string> keys;
  for (const TextsByKey& run : texts) {
    for (const auto& [key, value] : run) keys.insert(key);
  }
  Facts facts;
  for (const std::string& key : keys) {
    std::vector<std::string> values;
    for (const TextsByKey& run : texts) {
      values.push_back(run.contains(key) ? run.at(key) : "–");
    }
    if (only_differences &&
        std::ranges::count(values, values[0]) == static_cast<std::ptrdiff_t>(values.size())) {
      continue;
    }
    facts.emplace_back(printable(key), [&runs, values](const RunRecord& run) {
      return values.at(static_cast<size_t>(&run - runs.data()));
    });
  }
  return facts_of(runs, facts);
}

std::string configuration(const std::vector<RunRecord>& runs) {
  std::vector<TextsByKey> texts;
  for (const RunRecord& run : runs) texts.push_back(config_values(run.config));
  std::string html = "<h2>Configuration</h2>";
  if (runs.size() > 1) {
    const std::string differences = keys_table(runs, texts, true);
    html += differences.empty() ? "<p>The same in all runs.</p>"
                                : "<p>In what they differ:</p>" + differences;
  }
  for (const RunRecord& run : runs) {
    html += "<details><summary>config.toml of " + escape_html(name_of(run)) +
            "</summary><pre>longshore " + shown(run.command) + "\n" + shown(run.config) +
            "</pre></details>";
  }
  return html;
}

std::string environment(const std::vector<RunRecord>& runs) {
  std::vector<TextsByKey> texts(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].environment.is_object()) flatten(runs[i].environment, "", texts[i]);
  }
  const std::string table = keys_table(runs, texts, false);
  return table.empty() ? "" : "<h2>Environment</h2>" + table;
}

}  // namespace

std::string report_page(const std::vector<RunRecord>& runs) {
  const std::string title = runs.size() == 1 ? name_of(runs[0]) : "Runs compared";
  return page_head(title, chart_style() + kStyle) + "<h1>" + escape_html(title) + "</h1>" +
         legend(runs) + summary(runs) + section(runs, "Warnings", warnings) + "<h2>Training</h2>" +
         curves(runs) + section(runs, "Where a step's time went", time_of) + memory(runs) +
         section(runs, "Evaluations and samples", evaluations) + section(runs, "Data", data_of) +
         configuration(runs) + environment(runs) + std::string(kPageEnd);
}

}  // namespace longshore
