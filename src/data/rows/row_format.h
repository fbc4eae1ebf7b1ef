// RowFormat: converts a row of a file to documents. One implementation per format of the run file;
// immutable, any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/columns.h"
#include "base/json.h"
#include "config/run_config.h"
#include "data/sources/row_source.h"
#include "text/chat_encoder.h"
#include "text/tokenizer.h"

namespace longshore {

// Document: a tokenized row. There is one Hugging Face label per token: kNotTrained, or the id that
// the previous position has to predict.
struct Document {
  std::vector<TokenId> tokens;
  std::vector<TokenId> labels;
  std::string text{};      // the tokenized text, if RowFormatOptions::keep_text is set
  ColumnValues columns{};  // those of each label
  bool desirable = true;   // false: an answer that people rejected
};

// RowProblem: a fault of a row and its location in the row. The caller adds file and line.
class RowProblem : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct RowFormatOptions {
  const Tokenizer* tokenizer = nullptr;  // must outlive the format; may be absent for tokens
  int64_t model_vocabulary_size = 0;     // ids must be below
  int64_t teacher_tokens = DistillOptions().top_k;  // the most of a teacher for each token
  bool add_eos = true;
  const ChatTemplate* chat = nullptr;  // must outlive the format; may be absent where no row is a
                                       // conversation
  DataSection::Mask mask = DataSection::Mask::kAuto;
  std::map<std::string, std::string> keys{};  // member -> its name in the rows
  std::vector<ColumnId> columns{};            // that every row must have, beside its format's own
  std::string prompt_template = "auto";       // data.prompt_template
  Json template_arguments = Json::object();
  DataSection::SpecialTokens special_tokens = DataSection::SpecialTokens::kKeep;
  bool keep_text = false;

  std::string name_of(const std::string& member) const;
};

// RowNotes: counts the parts of rows that do not affect the documents.
struct RowNotes {
  ChatNotes unwritten;                    // by the chat template
  std::map<std::string, int64_t> unread;  // members by name, "messages[].name" in messages
  int64_t special_tokens = 0;             // spelled by the row's texts
  int64_t chat_prompts = 0;               // rows of Alpaca's names that "auto" writes as messages
  int64_t json_messages = 0;              // rows whose messages are JSON text
  int64_t json_texts = 0;                 // rows with such text that is trained as a text
  int64_t merged_borders = 0;             // rows in which a token spans the end of the prompt
  std::string border_piece;               // the first such token's text, printable

  // Counts a row in which the token of this text spans the end of the prompt.
  void add_border(std::string_view piece);
};

class RowFormat {
 public:
  virtual ~RowFormat() = default;
  virtual std::string_view name() const = 0;
  // Returns at least one document; a conversation may become several samples. Returns none if the
  // row has the weight 0. Throws RowProblem if the row does not have the format. Counts are added
  // to `notes` unless it is null.
  virtual std::vector<Document> read_row(const Json& row, RowNotes* notes = nullptr) const = 0;
  // Returns true if the documents of a row are answers that people judged: all of them are used or
  // none is, and none is split.
  virtual bool gives_answers() const { return false; }
  // Returns true if these are two, the chosen one first.
  virtual bool gives_pairs() const { return false; }
};

// `format` must not be kAuto. Throws DataError if the format needs a tokenizer and there is none,
// or if add_eos is set and the tokenizer has no eos token.
std::unique_ptr<RowFormat> make_row_format(DataSection::Format format,
                                           const RowFormatOptions& options);

// Reads a whole text as one document by the rules of the text format.
Document read_text(std::string_view text, const RowFormatOptions& options,
                   RowNotes* notes = nullptr);

// Passes the tokens of such a document to `use`, one piece at a time.
void stream_text(std::string_view text, const RowFormatOptions& options, RowNotes* notes,
                 const std::function<void(std::span<const TokenId>)>& use);

// Returns the format that the row's keys indicate. Throws RowProblem if they indicate none.
DataSection::Format detect_format(const Json& row, const RowFormatOptions& options);

// Returns the spelling of the format in the run file.
std::string_view name_of(DataSection::Format format);

// RowChecks: checks that all row formats share. Internal to src/data. Plain functions, any thread.

// The longest name or value in an error text or a report; printable() cuts the rest.
inline constexpr size_t kMaxNameBytes = 40;

// Returns "null", "a string", "an array" and so on.
std::string article_and_type(const Json& value);
// Returns the names of a row's first members, for error texts.
std::string keys_of(const Json& row);
// Returns a path such as "messages[2]".
std::string place_of(std::string_view name, size_t index);
void require_object(const Json& row);
// Reads an array of token ids; kNotTrained is valid too if `may_be_untrained` is set.
std::vector<TokenId> read_ids(const Json& value, const std::string& key, int64_t vocabulary_size,
                              bool may_be_untrained = false);
// Returns a finite number that fits float32; throws RowProblem for another value, or for one below
// 0 with `not_negative`.
float read_number(const Json& value, const std::string& place, bool not_negative);
// Reads an array with a number for each token, or one for each token with a loss, as the labels say
// before weights of 0 count. Values of other tokens count for nothing and may be null.
std::vector<float> read_numbers(const Json& values, const std::string& key,
                                const Document& document, bool not_negative);
// Returns the names of the members of rows that have the columns.
std::vector<std::string> members_of(std::span<const ColumnId> columns,
                                    const RowFormatOptions& options);
// Sets a column from the members of its row in the table of columns, of which there must be one;
// with a column of a teacher the other one, too.
void read_column(const Json& row, ColumnId column, const RowFormatOptions& options,
                 Document& document);
// Multiplies the loss of a row's documents by the row's weight, if it has one.
std::vector<Document> with_row_weight(const Json& row, const RowFormatOptions& options,
                                      std::vector<Document> documents);
// Returns the member, or throws RowProblem with the names of the members that exist.
const Json& required_member(const Json& row, const std::string& key);
// Returns the string. Throws RowProblem if it is no string, holds a NUL, or is empty without
// `may_be_empty`.
const std::string& required_text(const Json& value, const std::string& place,
                                 bool may_be_empty = false);
// Notes members of an object that are not in `read`, as `prefix` and name. Null members do not
// count.
void note_unread(const Json& object, const std::vector<std::string>& read,
                 const std::string& prefix, RowNotes* notes);
// Returns true if the ids begin with the begin token twice: a text that was rendered before has
// one, and the tokenizer added another. The first is left out then.
bool begins_twice(std::span<const TokenId> ids, const Tokenizer& tokenizer);
// Applies data.special_tokens to the special tokens that a row's text spells: notes them, refuses
// them, or breaks them up so that encode_row_text reads them as text.
std::string row_text(std::string text, const std::string& place, const RowFormatOptions& options,
                     RowNotes* notes);
// Encodes texts from row_text, joined with others, and removes their breaks from `text`. A begin
// token that the text has already is not added. Throws RowProblem.
EncodedText encode_row_text(std::string& text, const RowFormatOptions& options);
// Throws RowProblem if the model lacks an id.
void check_ids_of_text(std::span<const TokenId> ids, const RowFormatOptions& options);

// FileKind: describes a data file without rows of a known format, for error texts. Internal to
// src/data and to code that shows rows. Plain function, any thread.

// Describes the start of the file, the expected format, and the fix. Returns an empty string if the
// file seems to hold rows, each with a fault of its own.
std::string unknown_kind(JsonlReader reader);

// Throws DataError for a file without a row of a known format.
[[noreturn]] void refuse_unknown_format(const std::string& path, const RowFormatOptions& options);

}  // namespace longshore
