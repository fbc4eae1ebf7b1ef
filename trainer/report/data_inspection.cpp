#include "trainer/report/data_inspection.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/hash.h"
#include "data/rows/row_block.h"
#include "data/rows/row_format.h"
#include "data/tokens/batch.h"
#include "data/tokens/dataset.h"

namespace longshore {
namespace {

constexpr size_t kLengthSteps = 24;

// The maximum number of tokens that together spell one UTF-8 character.
constexpr size_t kMaxTokensOfACharacter = 4;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Returns how many of the first tokens form whole characters, and their text; 0 if four do not.
std::pair<size_t, std::string> whole_characters(const Tokenizer& tokenizer,
                                                std::span<const TokenId> ids) {
  for (size_t count = 1; count <= std::min(ids.size(), kMaxTokensOfACharacter); ++count) {
    std::string text = tokenizer.decode(ids.first(count), /*skip_special=*/false);
    if (!text.empty() && text.find(kReplacement) == std::string::npos) return {count, text};
  }
  return {0, ""};
}

// Returns what each token shows. The first of several tokens that spell one character shows it.
std::vector<std::string> pieces_of(const InspectedRow& row, const Tokenizer* tokenizer) {
  std::vector<std::string> pieces;
  while (pieces.size() < row.ids.size()) {
    const auto rest = std::span(row.ids).subspan(pieces.size());
    std::pair<size_t, std::string> whole{0, ""};
    if (tokenizer != nullptr) whole = whole_characters(*tokenizer, rest);
    if (whole.first > 0) {
      pieces.push_back(std::move(whole.second));
      pieces.resize(pieces.size() + whole.first - 1);
      continue;
    }
    std::string name = "[" + std::to_string(rest.front()) + "]";
    if (tokenizer != nullptr) name = tokenizer->token_of(rest.front()).value_or(name);
    pieces.push_back(name);
  }
  return pieces;
}

// Returns by label the sum of the teacher's probabilities, 0 without a loss.
std::vector<double> teacher_sums(const Document& document) {
  std::vector<double> sums;
  const std::vector<float>& logps = document.columns[kTeacherLogpColumn];
  if (logps.empty()) return sums;
  const size_t width = document.columns.teacher_tokens;
  for (size_t t = 0; t < document.labels.size(); ++t) {
    double sum = 0.0;
    for (size_t i = 0; i < width; ++i) sum += std::exp(static_cast<double>(logps[t * width + i]));
    sums.push_back(t > 0 && document.labels[t] != kNotTrained ? sum : 0.0);
  }
  return sums;
}

void show(Document document, const Tokenizer* tokenizer, InspectedRow& row) {
  row.teacher = teacher_sums(document);
  row.text = std::move(document.text);
  row.ids = std::move(document.tokens);
  row.labels = std::move(document.labels);
  row.weights = std::move(document.columns[kWeightColumn]);
  const auto trained = static_cast<int64_t>(row.labels.size()) -
                       std::count(row.labels.begin(), row.labels.end(), kNotTrained);
  if (trained == 0) row.problem = "no token is trained";
  if (row.text.empty() && tokenizer != nullptr) row.text = tokenizer->decode(row.ids, false);
  row.pieces = pieces_of(row, tokenizer);
}

// Adds one InspectedRow for each sample of a row, or one with the row's problem. `judged`: the row
// has one answer with a label.
void read_row(const InspectedRow& place, bool judged,
              const std::function<std::vector<Document>(RowNotes*)>& read,
              const Tokenizer* tokenizer, std::vector<InspectedRow>& inspected) {
  const size_t before = inspected.size();
  try {
    RowNotes notes;
    std::vector<Document> documents = read(&notes);
    if (documents.empty()) {
      InspectedRow& row = inspected.emplace_back(place);
      row.problem = "left out: its weight is 0";
      row.left_out = true;
    }
    for (size_t i = 0; i < documents.size(); ++i) {
      InspectedRow& row = inspected.emplace_back(place);
      row.sample = static_cast<int64_t>(i);
      row.samples = static_cast<int64_t>(documents.size());
      if (judged) row.label = documents[i].desirable;
      row.chat_prompt = notes.chat_prompts > 0;
      show(std::move(documents[i]), tokenizer, row);
    }
  } catch (const RowProblem& problem) {
    inspected.resize(before);
    inspected.emplace_back(place).problem = problem.what();
  }
}

// RowPicker: picks the rows [first, last) of all files, or of those rows that eval.split holds out.
// A held-out row is prepared again to see how many prepared rows it has: none if it is left out,
// several if it is split.
class RowPicker {
 public:
  RowPicker(int64_t first, int64_t last) : first_(first), last_(last) {}
  RowPicker(const PrepareOptions& options, const RowFormatOptions& rows, const HoldOut& part,
            int64_t first, int64_t last)
      : first_(first), last_(last), options_(&options), rows_(&rows), part_(part) {
    files_ = prepare_or_open(options).files;
  }

  // `format` must outlive the file.
  void begin_file(const RowFormat* format) {
    format_ = format;
    ++file_;
    if (files_.empty()) return;
    const auto count = std::ssize(row_starts(*files_[static_cast<size_t>(file_)])) - 1;
    held_out_ = rows_of_part(count, part_, file_);
    next_ = held_out_.begin();
    prepared_rows_ = 0;
  }

  bool takes(const JsonlLine& line) {
    if (!files_.empty() && !is_held_out(line)) return false;
    return number_++ >= first_;
  }
  // A text file is taken whole.
  bool takes_text() { return (files_.empty() || !held_out_.empty()) && number_++ >= first_; }
  bool done() const { return number_ >= last_; }

 private:
  bool is_held_out(const JsonlLine& line) {
    RowBlock block;
    block.text = line.text;
    block.rows = {{line.number, 0, line.text.size(), line.too_long, line.ended}};
    const TokenizedBlock made = RowTokenizer(&options_->data, format_, rows_).tokenize(block);
    prepared_rows_ += std::ssize(made.tokens.lengths) - std::ssize(made.tokens.rows_go_on);
    const auto after = std::lower_bound(next_, held_out_.cend(), prepared_rows_);
    return std::exchange(next_, after) != after;
  }

  int64_t first_, last_;
  int64_t number_ = 0;  // of rows that were not passed over
  const PrepareOptions* options_ = nullptr;
  const RowFormatOptions* rows_ = nullptr;
  HoldOut part_;
  std::vector<std::unique_ptr<TokenFile>> files_;  // empty if all rows are meant
  const RowFormat* format_ = nullptr;
  int64_t file_ = -1;
  std::vector<int64_t> held_out_;  // numbers of this file's prepared rows
  std::vector<int64_t>::const_iterator next_;
  int64_t prepared_rows_ = 0;  // of the lines so far
};

std::vector<InspectedRow> read_rows(const PrepareOptions& options, const RowFormatOptions& rows,
                                    RowPicker& picker) {
  std::vector<InspectedRow> inspected;
  int64_t number = 0;
  for (const std::string& path : options.files) {
    if (picker.done()) break;
    if (is_text_file(path)) {
      const auto format = make_row_format(DataSection::Format::kText, rows);
      picker.begin_file(format.get());
      if (picker.takes_text()) {
        read_row(
            {.row = number, .place = path}, /*judged=*/false,
            [&](RowNotes*) {
              return std::vector{read_text(read_text_file(open_data_file(path)), rows)};
            },
            options.tokenizer, inspected);
      }
      ++number;
      continue;
    }
    DataSection::Format found = options.data.format;
    const int64_t most = options.data.max_rows;
    if (found == DataSection::Format::kAuto)
      found = detect_file_format(JsonlReader(path, most), rows, true);
    if (found == DataSection::Format::kAuto) refuse_unknown_format(path, rows);
    const auto format = make_row_format(found, rows);
    picker.begin_file(format.get());
    JsonlReader reader(path, most);
    JsonlLine line;
    while (!picker.done() && reader.next(line)) {
      if (line.blank() && !line.too_long) continue;
      if (picker.takes(line)) {
        read_row(
            {.row = number,
             .pair = format->gives_pairs(),
             .place = path + ":" + std::to_string(line.number)},
            format->gives_answers() && !format->gives_pairs(),
            [&](RowNotes* notes) {
              return format->read_row(parse_row(line.text, line.too_long, line.ended), notes);
            },
            options.tokenizer, inspected);
      }
      ++number;
    }
  }
  return inspected;
}

RowFormatOptions with_text(const PrepareOptions& options) {
  RowFormatOptions rows = row_format_options(options);
  rows.keep_text = true;
  return rows;
}

}  // namespace

std::vector<InspectedRow> inspect_rows(const PrepareOptions& options, int64_t first, int64_t last) {
  const RowFormatOptions rows = with_text(options);
  RowPicker picker(first, last);
  return read_rows(options, rows, picker);
}

std::vector<InspectedRow> inspect_part(const PrepareOptions& options, const HoldOut& part,
                                       int64_t first, int64_t last) {
  const RowFormatOptions rows = with_text(options);
  RowPicker picker(options, rows, part, first, last);
  return read_rows(options, rows, picker);
}

DataStatistics measure_data(const RunConfig& config, const RunPreparation& preparation,
                            const std::vector<std::string>& files, const HoldOut& part) {
  PreparedData prepared = preparation.run(files, [] {});
  DataStatistics statistics;
  statistics.report = std::move(prepared.report);
  statistics.max_tokens = config.data.max_tokens;
  statistics.length_counts.assign(kLengthSteps, 0);
  if (part.part == HoldOut::Part::kHeldOut) statistics.held_out = part.fraction;
  std::vector<std::shared_ptr<const Dataset>> sets;
  for (auto& file : prepared.files) sets.push_back(std::move(file));
  const CombinedDataset all(std::move(sets), {}, part);
  std::vector<uint64_t> hashes;
  std::vector<int64_t> ids, targets;
  for (int64_t document = 0; document < all.document_count(); ++document) {
    ids.clear();
    targets.clear();
    all.append_document(document, ids, targets);
    hashes.push_back(hash64(std::as_bytes(std::span<const int64_t>(ids))));
    const auto length = std::ssize(ids);
    const int64_t step = (length - 1) * static_cast<int64_t>(kLengthSteps) /
                         std::max<int64_t>(1, statistics.max_tokens);
    ++statistics.length_counts[static_cast<size_t>(std::clamp<int64_t>(step, 0, kLengthSteps - 1))];
    statistics.tokens += length;
    statistics.trained_tokens += all.document_trained_tokens(document);
  }
  std::sort(hashes.begin(), hashes.end());
  statistics.documents = static_cast<int64_t>(hashes.size());
  const auto distinct = std::unique(hashes.begin(), hashes.end()) - hashes.begin();
  statistics.duplicates = statistics.documents - static_cast<int64_t>(distinct);
  const LossTraits& loss = traits_of(config.train.loss);
  const bool pairs = (!loss.judged || loss.paired()) &&
                     std::ranges::any_of(statistics.report.files, [](const FileReport& file) {
                       return file.format == name_of(DataSection::Format::kPreference);
                     });
  PackingOptions packing = packing_options(config.data, pairs ? 2 : 1);
  std::optional<MismatchedDataset> mismatched;  // it needs two rows
  if (loss.forward_first && row_starts(all).size() > 2) {
    mismatched.emplace(&all, config.train.sequences_per_step, config.data.max_tokens);
    packing.beside = &*mismatched;
  }
  packing.shuffle_seed = static_cast<uint64_t>(config.run.seed);
  statistics.sequence_tokens = packing.max_tokens;
  const SequenceTable table = make_sequences(all, packing);
  statistics.sequences = table.sequence_count();
  statistics.efficiency = static_cast<double>(statistics.tokens) /
                          static_cast<double>(statistics.sequences * statistics.sequence_tokens);
  return statistics;
}

}  // namespace longshore
