// Formats an inspection of data for a terminal, as JSON and as an HTML page.
#include <algorithm>

#include "base/texts.h"
#include "data/tokens/dataset.h"
#include "trainer/report/data_inspection.h"
#include "trainer/report/page.h"

namespace longshore {
namespace {

constexpr const char* kTrained = "\x1b[30;42m";      // black on green
constexpr const char* kTrainedOdd = "\x1b[30;102m";  // every second trained token
constexpr const char* kRead = "\x1b[2m";             // faint
constexpr const char* kPlain = "\x1b[0m";

double ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

// Marks line feeds and breaks the line there. Other control characters are escaped.
std::string for_terminal(const std::string& piece, const std::string& before,
                         const std::string& after) {
  std::string text = before;
  for (size_t begin = 0;; ++begin) {
    const size_t end = std::min(piece.find('\n', begin), piece.size());
    text += printable(std::string_view(piece).substr(begin, end - begin), std::string::npos);
    if (end == piece.size()) break;
    text += "↵" + after + "\n" + before;
    begin = end;
  }
  return text + after;
}

// Marks line feeds and breaks the line there.
std::string escape_piece(const std::string& text) {
  std::string out;
  for (const char letter : escape_html(text)) {
    out += letter == '\n' ? "<i>↵</i>\n" : std::string(1, letter);
  }
  return out;
}

// Returns the counts; counts of unusual rows only if they are not 0.
std::vector<Fact> facts_of(const DataStatistics& statistics) {
  const FileReport total = statistics.report.sum();
  std::vector<Fact> facts = {
      {"format", total.format + (total.detected ? " (auto)" : "")},
      {"rows", format_count(total.rows)},
      {"documents", format_count(statistics.documents)},
      {"tokens", format_count(statistics.tokens)},
      {"trained tokens", format_count(statistics.trained_tokens) + " (" +
                             percent(ratio(statistics.trained_tokens, statistics.tokens)) + ")"},
      {"longest row", format_count(total.longest_row_tokens) + " tokens"},
      {"sequences", format_count(statistics.sequences) + " of up to " +
                        format_count(statistics.sequence_tokens) + " tokens"},
      {"packing efficiency", percent(statistics.efficiency)}};
  if (statistics.held_out > 0.0) {
    facts[1] = {"rows of the files", format_count(total.rows)};
    facts[2] = {"held-out documents", format_count(statistics.documents)};
  }
  const auto add = [&facts](const char* name, int64_t count, const std::string& more = "") {
    if (count > 0) facts.push_back({name, format_count(count) + more});
  };
  add("duplicates", statistics.duplicates);
  add("bad rows skipped", total.bad_rows);
  add("truncated", total.truncated);
  add("dropped", total.dropped);
  add("split as too long", total.split);
  add("weight 0", total.weightless, " rows left out");
  add("in several samples", total.resampled_rows,
      " rows, " + format_count(total.resampled_tokens) + " tokens more");
  return facts;
}

// Returns remarks on the rows; of several files also the counts of each.
std::vector<std::string> remarks_on(const DataReport& report) {
  std::vector<std::string> remarks;
  for (const FileReport& file : report.files) {
    std::vector<std::string> lines = lines_of(file);
    if (report.files.size() == 1) lines.erase(lines.begin());
    for (std::string& line : lines) remarks.push_back(std::move(line));
  }
  for (std::string& warning : report.warnings()) remarks.push_back(std::move(warning));
  return remarks;
}

// Returns the first and the last length of a histogram step, e.g. {1, 43}.
std::pair<int64_t, int64_t> lengths_of_step(const DataStatistics& statistics, size_t step) {
  const auto steps = static_cast<int64_t>(statistics.length_counts.size());
  const auto s = static_cast<int64_t>(step);
  return {s * statistics.max_tokens / steps + 1, (s + 1) * statistics.max_tokens / steps};
}

std::string histogram_svg(const DataStatistics& statistics) {
  const int64_t most = std::max<int64_t>(
      1, *std::max_element(statistics.length_counts.begin(), statistics.length_counts.end()));
  std::string svg =
      "<svg viewBox='0 -24 720 214' role='img' aria-label='lengths of documents'>"
      "<text x='0' y='-6'>documents, at most " +
      format_count(most) + "</text>";
  for (size_t step = 0; step < statistics.length_counts.size(); ++step) {
    const int64_t count = statistics.length_counts[step];
    const auto height = static_cast<int64_t>(150.0 * ratio(count, most) + (count > 0 ? 1.0 : 0.0));
    const auto [first, last] = lengths_of_step(statistics, step);
    svg += formatted(
        "<rect x='%zu' y='%lld' width='26' height='%lld'><title>%lld to %lld tokens: "
        "%lld</title></rect>",
        step * 30, static_cast<long long>(160 - height), static_cast<long long>(height),
        static_cast<long long>(first), static_cast<long long>(last), static_cast<long long>(count));
  }
  return svg + "<text x='0' y='180'>1</text><text x='720' y='180' text-anchor='end'>" +
         format_count(statistics.max_tokens) + " tokens</text></svg>";
}

constexpr const char* kStyle = R"(
:root { --trained: #2e9e5b44; --odd: #2e9e5b77; }
svg { width: 100%; } rect { fill: #2e9e5b; } svg text { font-size: 12px; fill: currentColor; }
article { border: 1px solid var(--line); border-radius: .5rem; margin: 1rem 0; overflow: hidden; }
header { padding: .4rem .8rem; border-bottom: 1px solid var(--line); font-size: .85rem; }
pre { padding: .8rem; } pre span { opacity: .6; }
pre b { font-weight: inherit; background: var(--trained); }
pre b:nth-of-type(odd) { background: var(--odd); } i { opacity: .4; font-style: normal; }
section { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; }
.problem { color: #c33; padding: .8rem; }
@media (max-width: 40rem) { svg text { font-size: 20px; } section { grid-template-columns: 1fr; } }
)";

const char* answer_of(const InspectedRow& row) {
  return row.sample == 0 ? "chosen" : "rejected";
}

std::string title_of(const InspectedRow& row) {
  std::string title = "row " + std::to_string(row.row);
  if (row.label) title += *row.label ? ", desirable" : ", undesirable";
  if (row.samples == 1) return title;
  if (row.pair) return title + ", " + answer_of(row);
  return title + ", sample " + std::to_string(row.sample + 1) + " of " +
         std::to_string(row.samples);
}

std::string article_of(const InspectedRow& row) {
  std::string html = "<article><header>" + title_of(row) + " · " + escape_piece(row.place) + " · " +
                     std::to_string(row.ids.size()) + " tokens</header>";
  if (!row.problem.empty()) {
    html += "<div class='problem'>" + escape_piece(row.problem) + "</div>";
  }
  html += "<pre>";
  for (size_t t = 0; t < row.ids.size(); ++t) {
    const char* tag = row.labels[t] != kNotTrained ? "b" : "span";
    html += std::string("<") + tag + " title='" + std::to_string(row.ids[t]) + "'>" +
            escape_piece(row.pieces[t]) + "</" + tag + ">";
  }
  return html + "</pre></article>";
}

}  // namespace

std::string describe_row(const InspectedRow& row, bool colour) {
  std::string text = title_of(row) + "  " + printable(row.place);
  if (!row.problem.empty()) text += "\n  " + printable_lines(row.problem);
  if (row.ids.empty()) return text + "\n";
  const auto trained = static_cast<int64_t>(row.labels.size()) -
                       std::count(row.labels.begin(), row.labels.end(), kNotTrained);
  text += "  " + std::to_string(row.ids.size()) + " tokens, " + std::to_string(trained) +
          (row.pair || row.label ? " scored\n" : " trained\n");
  bool odd = false, open = false;
  for (size_t t = 0; t < row.ids.size(); ++t) {
    const bool learned = row.labels[t] != kNotTrained;
    if (colour) {
      odd = !odd;
      const char* style = !learned ? kRead : odd ? kTrained : kTrainedOdd;
      text += for_terminal(row.pieces[t], style, kPlain);
      continue;
    }
    if (learned != open) text += learned ? "⟦" : "⟧";
    open = learned;
    text += for_terminal(row.pieces[t], "", "");
  }
  return text + (open ? "⟧\n" : "\n");
}

std::string describe_statistics(const DataStatistics& statistics) {
  std::string text;
  for (const Fact& fact : facts_of(statistics)) {
    text += "  " + fact.name + std::string(20 - fact.name.size(), ' ') + fact.value + "\n";
  }
  text += "lengths of documents\n";
  const std::vector<int64_t>& counts = statistics.length_counts;
  const int64_t most = std::max<int64_t>(1, *std::ranges::max_element(counts));
  for (size_t step = 0; step < counts.size(); ++step) {
    if (counts[step] == 0) continue;
    const auto [first, last] = lengths_of_step(statistics, step);
    text +=
        formatted("  %7lld - %7lld ", static_cast<long long>(first), static_cast<long long>(last));
    const auto cells = static_cast<int64_t>(48.0 * ratio(counts[step], most) + 0.999);
    for (int64_t cell = 0; cell < cells; ++cell) text += "█";
    text += " " + format_count(counts[step]) + "\n";
  }
  for (const std::string& remark : remarks_on(statistics.report)) text += remark + "\n";
  return text;
}

Json row_as_json(const InspectedRow& row) {
  if (row.ids.empty()) return {{"row", row.row}, {"place", row.place}, {"problem", row.problem}};
  Json object = {
      {"row", row.row}, {"text", row.text}, {"input_ids", row.ids}, {"labels", row.labels}};
  if (row.label) object["label"] = *row.label;
  if (!row.weights.empty()) object["weights"] = row.weights;
  if (!row.teacher.empty()) object["teacher"] = row.teacher;
  if (row.pair) {
    object["answer"] = answer_of(row);
  } else if (row.samples > 1) {
    object["sample"] = row.sample;
  }
  if (!row.problem.empty()) object["problem"] = row.problem;
  return object;
}

std::string inspection_page(const DataStatistics& statistics,
                            const std::vector<InspectedRow>& rows) {
  std::string page = page_head("Training data", kStyle);
  page += "<h1>Training data</h1>" + fact_boxes(facts_of(statistics));
  page += "<h2>Lengths of documents</h2>" + histogram_svg(statistics) + "<p>";
  for (const std::string& remark : remarks_on(statistics.report)) {
    page += escape_html(remark) + "<br>";
  }
  page += "</p>";
  page +=
      "<h2>Rows</h2><p><b style='background:var(--odd)'>marked</b> tokens are trained or, of a "
      "judged answer, scored, faint ones only read.</p>";
  for (const InspectedRow& row : rows) {
    // The answers of a pair are side by side.
    const bool both = row.pair && row.samples == 2;
    if (both && row.sample == 0) page += "<section>";
    page += article_of(row);
    if (both && row.sample == 1) page += "</section>";
    page += "\n";
  }
  return page + std::string(kPageEnd);
}

}  // namespace longshore
