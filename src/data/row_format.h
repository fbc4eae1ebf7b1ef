// RowFormat: how a row of a file becomes a document. One implementation per format of the run file;
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

#include "base/json.h"
#include "config/run_config.h"
#include "text/chat_encoder.h"
#include "text/tokenizer.h"

namespace longshore {

// A tokenised row. Labels as Hugging Face has them: one for each token, kNotTrained or the id that
// the position before it has to predict.
struct Document {
  std::vector<TokenId> tokens;
  std::vector<TokenId> labels;
  std::string text{};  // what was tokenised, where RowFormatOptions::keep_text asks for it
};

// What is wrong with a row, and where in it; the caller knows file and line.
class RowProblem : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct RowFormatOptions {
  const Tokenizer* tokenizer = nullptr;  // must outlive the format; may be absent for tokens
  int64_t model_vocabulary_size = 0;     // ids must be below
  bool add_eos = true;
  const ChatTemplate* chat = nullptr;  // must outlive the format; may be absent where no row is a
                                       // conversation
  DataSection::Mask mask = DataSection::Mask::kAuto;
  std::map<std::string, std::string> keys{};  // member -> its name in the rows
  std::string prompt_template = "auto";       // data.prompt_template
  Json template_arguments = Json::object();
  bool keep_text = false;

  std::string name_of(const std::string& member) const;
};

// What of a row has no part in what becomes of it.
struct RowNotes {
  ChatNotes unwritten;                    // by the chat template
  std::map<std::string, int64_t> unread;  // members by name, "messages[].name" in messages
};

class RowFormat {
 public:
  virtual ~RowFormat() = default;
  virtual std::string_view name() const = 0;
  // At least one document: a conversation may be several samples. RowProblem for a row that is
  // none. `notes`, where they are given, are added to.
  virtual std::vector<Document> read_row(const Json& row, RowNotes* notes = nullptr) const = 0;
};

// Rows of the given format, never kAuto. DataError where the format needs a tokenizer and there is
// none, or add_eos and the tokenizer has no eos token.
std::unique_ptr<RowFormat> make_row_format(DataSection::Format format,
                                           const RowFormatOptions& options);

// A whole text as a document, as rows of the text format are read.
Document read_text(std::string_view text, const RowFormatOptions& options);

// The tokens of such a document, a piece at a time.
void stream_text(std::string_view text, const RowFormatOptions& options,
                 const std::function<void(std::span<const TokenId>)>& use);

// The format that a first row's keys show. RowProblem where they show none.
DataSection::Format detect_format(const Json& row, const RowFormatOptions& options);

// As the run file spells it.
std::string_view name_of(DataSection::Format format);

}  // namespace longshore
