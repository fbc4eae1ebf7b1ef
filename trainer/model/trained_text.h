// TrainedText: what a run teaches beside its weights: the tokens that texts end with, and the chat
// template that writes conversations. Whoever serves the export needs both, or it writes other
// prompts than were trained, or never stops. Counted when the data is read, kept in the run's
// directory, and put into the export. Plain values and functions; any thread.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/run_config.h"
#include "data/dataset.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "trainer/model/model_source.h"

namespace longshore {

// A token that ends documents.
struct TextEnd {
  int64_t id = 0;
  std::string token;      // as the vocabulary spells it
  int64_t documents = 0;  // of those that were looked at
};

struct TextEnds {
  std::vector<TextEnd> ends;  // the most frequent first; a rare one is none
  int64_t documents = 0;      // that were looked at
  int64_t without = 0;        // of them: the trained part has no such token at its end
};

// Counts what documents end with: a special token of the vocabulary, or one that ends generated
// texts, among the last trained tokens. (A line break may follow it.)
class EndCounter {
 public:
  // `tokenizer` must outlive it.
  explicit EndCounter(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}
  // A document's trained tokens in their order; those that are kNotTrained are passed over.
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

// Of documents that are spread over all of the data.
TextEnds ends_of(const Dataset& data, const Tokenizer& tokenizer);

Json to_json(const TextEnds& ends);
// Empty for what is no such object.
TextEnds text_ends_of(const Json& object);

// The tokens with which transformers and vLLM end what the model generates: eos_token_id of
// generation_config.json, or without that file of config.json.
std::vector<int64_t> end_tokens(const ModelSource& source);

// What is to be said before training, a line each: texts that are trained to end with a token that
// ends none of the model's, and conversations that are not trained to end.
std::vector<std::string> end_notes(const TextEnds& ends, bool conversations,
                                   const ModelSource& source);

// The template for the run's directory: the file in data.chat_template. Empty where the tokenizer's
// own is used, which an export has anyway, or a training template, which stands for that one.
std::string template_to_export(const RunConfig& config, const ChatTemplate* chat);

// Files of an export that are not the source's.
struct ExportTexts {
  std::string card;                          // README.md; empty: the source's
  std::map<std::string, std::string> files;  // by name
  std::set<std::string> left_out;            // of the source
  std::vector<std::string> lines;            // what they say, for the model card
};

// Puts the run's tokenizer, chat template and end tokens into `texts`, as the run's directory tells
// of them.
void add_trained_text(const RunConfig& config, const ModelSource& source,
                      const std::string& run_directory, ExportTexts& texts);

}  // namespace longshore
