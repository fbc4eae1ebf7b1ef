#include "trainer/use/prompt_writer.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/errors.h"
#include "base/texts.h"
#include "data/prepare/prepare.h"
#include "data/rows/chat_rows.h"
#include "data/tokens/dataset.h"
#include "text/chat_encoder.h"
#include "trainer/data/run_data.h"
#include "trainer/data/run_prepare.h"
#include "trainer/model/trained_text.h"

namespace longshore {
namespace {

std::string name_of_prompt(const std::string& text) {
  return "the prompt '" + printable(text, 40) + "'";
}

// Returns the special tokens with which the template ends an answer, as training would see them.
std::vector<TokenId> ends_of_answers(const Tokenizer& tokenizer, const ChatTemplate& chat,
                                     const Json& arguments) {
  const Json messages = Json::array({{{"role", "user"}, {"content", "A question."}},
                                     {{"role", "assistant"}, {"content", "An answer."}}});
  EndCounter counter(&tokenizer);
  try {
    const ChatEncoder encoder(&tokenizer, &chat);
    for (const EncodedChat& sample :
         encoder.encode(messages, {.arguments = arguments}, ChatMask::kAssistant)) {
      std::vector<TokenId> labels(sample.ids.size(), kNotTrained);
      for (size_t t = 0; t < labels.size(); ++t) {
        if (sample.trained[t]) labels[t] = sample.ids[t];
      }
      counter.take(std::span<const TokenId>(labels));
    }
  } catch (const ChatProblem&) {
    return {};  // the tokenizer's own end tokens remain
  }
  std::vector<TokenId> ids;
  for (const TextEnd& end : counter.ends().ends) ids.push_back(static_cast<TokenId>(end.id));
  return ids;
}

}  // namespace

PromptWriter::PromptWriter(const RunConfig& config, const ModelDirectory& model, Form form,
                           const std::string& asked_by)
    : tokenizer_(load_run_tokenizer(config, model.path())), stops_(tokenizer_.stop_ids()) {
  if (form == Form::kText) return;
  const std::string directory = tokenizer_directory(config, model.path());
  chat_ = run_chat_template(config, directory, tokenizer_);
  if (!chat_) {
    throw ConfigError(asked_by + ": " + directory +
                      " has no chat template (chat_template.jinja, or chat_template in "
                      "tokenizer_config.json), as base models have none; give one with "
                      "data.chat_template, or let the model continue the text as it is");
  }
  PrepareOptions options;
  options.data = config.data;
  arguments_ = row_format_options(options).template_arguments;
  for (const TokenId id : ends_of_answers(tokenizer_, *chat_, arguments_)) {
    if (std::ranges::find(stops_, id) == stops_.end()) stops_.push_back(id);
  }
}

Prompt PromptWriter::write(const std::string& text) const {
  if (chat_) return write_messages(Json::array({{{"role", "user"}, {"content", text}}}));
  try {
    return {.text = text, .tokens = tokenizer_.encode(text, SpecialTokens::kAdd)};
  } catch (const DataError& error) {
    throw ConfigError(name_of_prompt(text) + ": " + error.what());
  }
}

Prompt PromptWriter::write_messages(const Json& messages) const {
  for (const Json& message : messages) {
    const std::string& content = message.at("content").get_ref<const std::string&>();
    if (first_invalid_utf8(content))
      throw ConfigError(name_of_prompt(content) + ": it is not UTF-8");
  }
  return rendered(messages, nullptr, arguments_);
}

Prompt PromptWriter::write_row(const Json& row, const std::string& system) const {
  Json asked = Json::object();
  for (const char* name : {"messages", "tools", "chat_template_kwargs"}) {
    if (row.contains(name)) asked[name] = row[name];
  }
  if (!system.empty()) asked["system"] = system;
  Conversation conversation = read_conversation(asked, {});
  if (is_answer(conversation.messages.back())) {
    throw RowProblem("messages: the last one is the assistant's; it must be the one to answer");
  }
  Json arguments = arguments_;
  arguments.update(conversation.arguments);
  return rendered(std::move(conversation.messages), conversation.tools, arguments);
}

// Writes a conversation up to the answer that the template opens.
Prompt PromptWriter::rendered(Json messages, const Json& tools, const Json& arguments) const {
  LONGSHORE_CHECK(chat_) << "the prompts are texts";
  const std::string text = member_text(messages.back(), "content");
  try {
    const RenderedChat rendered =
        chat_->render(messages_for(*chat_, std::move(messages), !tools.is_null()),
                      {.tools = tools, .add_generation_prompt = true, .arguments = arguments});
    // The template writes its own special tokens.
    return {.text = text, .tokens = tokenizer_.encode(rendered.text, SpecialTokens::kNone)};
  } catch (const ChatProblem& problem) {
    throw ConfigError(name_of_prompt(text) +
                      ": the chat template refuses the conversation: " + problem.what());
  } catch (const DataError& error) {
    throw ConfigError(name_of_prompt(text) + ": " + error.what());
  }
}

std::optional<DecodeNeeds> sample_needs(const MeasuredRun& setup) {
  using Format = EvalSection::PromptFormat;
  const RunConfig& config = setup.config;
  if (config.eval.prompts.empty() || !has_evaluation_data(config)) return std::nullopt;
  DecodeNeeds needs{.sequences = std::ssize(config.eval.prompts)};
  for (const auto& [form, other] : {std::pair{PromptWriter::Form::kText, Format::kMessages},
                                    {PromptWriter::Form::kMessages, Format::kText}}) {
    if (config.eval.prompt_format == other) continue;
    try {
      const PromptWriter writer(config, setup.source->directory(), form, "eval.prompt_format");
      for (const std::string& text : config.eval.prompts) {
        const int64_t tokens = std::ssize(writer.write(text).tokens) + config.eval.max_new_tokens;
        needs.longest = std::max(needs.longest, tokens);
      }
    } catch (const Error&) {
      // The start of the run refuses prompts that cannot be written in the form that they have.
    }
  }
  return needs;
}

}  // namespace longshore
