// PromptWriter: writes prompts as tokens: a text unchanged, or a conversation by the run's chat
// template, up to where the assistant's answer begins. Owned by the caller; one thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/run_config.h"
#include "hf/model_directory.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "trainer/setup/run_setup.h"
#include "trainer/use/generator.h"

namespace longshore {

class PromptWriter {
 public:
  enum class Form : uint8_t { kText, kMessages };

  // `asked_by` names the option or key that asks for kMessages. ConfigError if there is no chat
  // template for it, DataError if tokenizer or template cannot be used.
  PromptWriter(const RunConfig& config, const ModelDirectory& model, Form form,
               const std::string& asked_by);
  PromptWriter(const PromptWriter&) = delete;
  PromptWriter& operator=(const PromptWriter&) = delete;

  // Writes a text, in kMessages as the user's message of a conversation. Both functions throw
  // ConfigError if the tokenizer or the template refuses the prompt.
  Prompt write(const std::string& text) const;
  // Writes a conversation that ends with the user's message; for kMessages only.
  Prompt write_messages(const Json& messages) const;
  // Writes the conversation of a row from outside: "messages" as rows of training data have them,
  // and "tools" and "chat_template_kwargs" if the row has them. `system` becomes the system message
  // if it is not empty and the messages have none. For kMessages only; throws RowProblem too.
  Prompt write_row(const Json& row, const std::string& system) const;

  bool writes_messages() const { return chat_.has_value(); }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  // Returns the tokens that end a generated text: the tokenizer's, and in kMessages those with
  // which the template ends an answer.
  const std::vector<TokenId>& stops() const { return stops_; }

 private:
  Prompt rendered(Json messages, const Json& tools, const Json& arguments) const;

  Tokenizer tokenizer_;
  std::optional<ChatTemplate> chat_;  // kMessages only
  Json arguments_ = Json::object();   // data.template_arguments
  std::vector<TokenId> stops_;
};

// Returns what a run decodes for the samples of its evaluations (eval.prompts); empty if it writes
// none. Whether prompts are texts or messages may follow from data that nobody has read yet, so the
// longer form counts. All ranks must agree on the result.
std::optional<DecodeNeeds> sample_needs(const MeasuredRun& setup);

}  // namespace longshore
