// Everything that a run trains beside weights: the tokens that end texts, and the chat template
// of conversations. Without them a server of the export uses other prompts or never stops. They are
// counted when data is read, stored in the run's directory and added to the export. Plain values
// and functions; any thread.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/run_config.h"
#include "data/tokens/dataset.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "trainer/model/model_source.h"

namespace longshore {

// TextEnd is a token that ends documents.
struct TextEnd {
  int64_t id = 0;
  std::string token;      // its spelling in the vocabulary
  int64_t documents = 0;  // number of examined documents that end with it
};

struct TextEnds {
  std::vector<TextEnd> ends;  // the most frequent first, without rare ones
  int64_t documents = 0;      // number of examined documents
  int64_t without = 0;        // examined documents whose trained part has no end token
};

// EndCounter counts the end tokens of documents: a special token, or one that ends generation,
// among the last three trained tokens, since a line break may follow it.
class EndCounter {
 public:
  // `tokenizer` must outlive it.
  explicit EndCounter(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}
  // Counts one document; `trained` are its tokens in order. kNotTrained tokens are skipped.
  template <typename Token>
  void take(std::span<const Token> trained) {
    ++ends_.documents;
    size_t looked_at = 0;
    for (size_t i = trained.size(); i > 0 && looked_at < kLastTokens; --i) {
      if (trained[i - 1] == kNotTrained) continue;
      ++looked_at;
      if (take_end(static_cast<TokenId>(trained[i - 1]))) return;
    }
    ++ends_.without;
  }
  TextEnds ends() const;

 private:
  static constexpr size_t kLastTokens = 3;
  bool take_end(TokenId id);

  const Tokenizer* tokenizer_;
  TextEnds ends_;
  std::map<TokenId, int64_t> counts_;
};

// Counts the ends of up to 256 documents spread over the data.
TextEnds ends_of(const Dataset& data, const Tokenizer& tokenizer);

Json to_json(const TextEnds& ends);
// Returns an empty value if `object` has another form.
TextEnds text_ends_of(const Json& object);

// Returns the tokens at which transformers and vLLM stop generating: eos_token_id of
// generation_config.json, or of config.json if that file is missing.
std::vector<int64_t> end_tokens(const ModelSource& source);

// Returns warnings before training, one line each: end tokens of the texts at which the model does
// not stop, and conversations without a trained end token.
std::vector<std::string> end_notes(const TextEnds& ends, bool conversations,
                                   const ModelSource& source);

// Returns the chat template for the run's directory: the file of data.chat_template. Empty for the
// tokenizer's own template, which the export contains anyway, and for a training variant of it.
std::string template_to_export(const RunConfig& config, const ChatTemplate* chat);

// Returns the texts of a tokenizer's files in a directory, with those of its chat templates, by
// name. Missing files are left out.
std::map<std::string, std::string> read_tokenizer_files(const std::string& directory);

// ExportTexts are the files of an export that differ from the source's.
struct ExportTexts {
  std::string card;                          // README.md; empty: the source's
  std::map<std::string, std::string> files;  // contents by name
  std::set<std::string> left_out;            // source files to omit
  std::vector<std::string> lines;            // summary for the model card
};

// Adds the run's tokenizer, chat template and end tokens to `texts`, as recorded in its directory.
void add_trained_text(const RunConfig& config, const ModelSource& source,
                      const std::string& run_directory, ExportTexts& texts);

}  // namespace longshore
