// A view of a run's training data: rows with the trained tokens marked, counts,
// lengths, and how full the sequences are. Made by `check data`; main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "data/rows/data_report.h"
#include "data/tokens/dataset.h"
#include "trainer/data/run_prepare.h"

namespace longshore {

// InspectedRow: a row before packing, or one of its samples.
struct InspectedRow {
  int64_t row = 0;                  // counts from 0 over all files; blank lines do not count
  int64_t sample = 0, samples = 1;  // one conversation may give several samples
  bool pair = false;                // sample 0 is the chosen answer's, sample 1 the rejected one's
  std::optional<bool> label = {};   // of a row with one judged answer: true if it is desirable
  bool chat_prompt = false;         // "auto" wrote its instruction by the chat template
  std::string place;
  std::string text{};
  std::vector<TokenId> ids{};
  std::vector<TokenId> labels{};
  std::vector<float> weights{};  // of the labels' losses; empty: all are 1
  // By label: the sum of the teacher's probabilities in the row; empty without a teacher.
  std::vector<double> teacher{};
  // pieces[i] is the part of `text` that token i writes, or the token's name. It is empty if an
  // earlier token already shows the character.
  std::vector<std::string> pieces{};
  std::string problem{};  // empty: the row can be used
  bool left_out = false;  // skipped because its weight is 0, which is no mistake
};

// Reads rows [first, last) of the files again and returns them.
std::vector<InspectedRow> inspect_rows(const PrepareOptions& options, int64_t first, int64_t last);
// Returns rows [first, last) of those that `part` selects. The files must be prepared.
std::vector<InspectedRow> inspect_part(const PrepareOptions& options, const HoldOut& part,
                                       int64_t first, int64_t last);

struct DataStatistics {
  DataReport report;      // of whole files
  double held_out = 0.0;  // eval.split, if all else is about the rows that it holds out
  int64_t documents = 0, tokens = 0, trained_tokens = 0;
  int64_t duplicates = 0;  // documents whose tokens equal those of an earlier document
  int64_t sequences = 0;
  double efficiency = 0.0;  // tokens over sequences * sequence_tokens
  int64_t max_tokens = 0;
  int64_t sequence_tokens = 0;         // room for tokens in a sequence; a pair has two documents
  std::vector<int64_t> length_counts;  // documents by length, in equal steps up to max_tokens
};

// Measures the rows of the files that `part` selects.
DataStatistics measure_data(const RunConfig& config, const RunPreparation& preparation,
                            const std::vector<std::string>& files, const HoldOut& part);

// Formats a row, or one answer of a pair, for a terminal. `colour` marks trained tokens by colour
// instead of brackets.
std::string describe_row(const InspectedRow& row, bool colour);
// Formats the counts, then the lengths, then remarks; counts of 0 are left out.
std::string describe_statistics(const DataStatistics& statistics);
// Returns {"row", "text", "input_ids", "labels"}, of a pair with "answer", of a judged answer with
// "label", with "weights" and "teacher" if there are any, or {"row", "problem"}.
Json row_as_json(const InspectedRow& row);
// Returns one HTML page that needs no other file.
std::string inspection_page(const DataStatistics& statistics,
                            const std::vector<InspectedRow>& rows);

}  // namespace longshore
