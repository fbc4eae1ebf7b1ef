// A file of rows: JSONL, an array or a table, plain or compressed, in every format of data.format.
#include "data/rows/row_format.h"
#include "data/sources/row_source.h"
#include "tests/fuzz/fuzz_targets.h"

namespace longshore {
namespace {

const RowFormatOptions& options() {
  static const ChatTemplate chat = ChatTemplate::from_text(
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}</s>"
      "{% endif %}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
      byte_level_tokenizer(), "2024-07-26", "template");
  static const RowFormatOptions options{
      .tokenizer = &byte_level_tokenizer(), .model_vocabulary_size = 257, .chat = &chat};
  return options;
}

bool reads_row(std::string_view text) {
  try {
    const Json row = parse_python_json(text, {}, "row");
    RowNotes notes;
    for (const Document& document :
         make_row_format(detect_format(row, options()), options())->read_row(row, &notes)) {
      LONGSHORE_CHECK(!document.tokens.empty());
      LONGSHORE_CHECK(document.tokens.size() == document.labels.size());
      for (const TokenId id : document.tokens) LONGSHORE_CHECK(id >= 0 && id < 257) << id;
    }
  } catch (const RowProblem&) {
    return false;
  } catch (const DataError&) {
    return false;
  }
  return true;
}

}  // namespace

bool fuzz_rows(std::string_view bytes) {
  const MemoryFile memory(bytes);
  JsonlReader reader(memory.path());
  bool all = true;
  for (JsonlLine line; reader.next(line) && line.number <= 100;) {
    if (line.blank()) continue;
    all = !line.too_long && reads_row(line.text) && all;
  }
  return all;
}

}  // namespace longshore
