#include "data/chat_rows.h"

#include <utility>

#include "base/errors.h"
#include "data/dataset.h"
#include "data/row_format.h"
#include "text/chat_encoder.h"
#include "text/tokenizer.h"

namespace longshore {
namespace {

using Mask = DataSection::Mask;

ChatMask chat_mask(Mask mask, ChatMask otherwise) {
  switch (mask) {
    case Mask::kAuto:
      return otherwise;
    case Mask::kAssistant:
      return ChatMask::kAssistant;
    case Mask::kCompletion:
      return ChatMask::kCompletion;
    case Mask::kLast:
      return ChatMask::kLast;
    case Mask::kAll:
      return ChatMask::kAll;
  }
  return otherwise;
}

Document document_of(EncodedChat encoded, const RowFormatOptions& options) {
  check_ids_of_text(encoded.ids, options);
  Document document;
  document.labels.assign(encoded.ids.size(), kNotTrained);
  for (size_t t = 0; t < encoded.ids.size(); ++t) {
    if (encoded.trained[t]) document.labels[t] = encoded.ids[t];
  }
  document.columns[kWeightColumn] = std::move(encoded.weights);
  document.tokens = std::move(encoded.ids);
  if (options.keep_text) document.text = std::move(encoded.text);
  return document;
}

}  // namespace

std::vector<Document> encode_conversation(const Conversation& conversation,
                                          const RowFormatOptions& options, ChatMask mask,
                                          RowNotes* notes) {
  if (options.chat == nullptr) {
    throw DataError(
        "conversations need a chat template, and the model directory has none "
        "(chat_template.jinja, or chat_template in tokenizer_config.json); give one with "
        "data.chat_template");
  }
  ChatVariables variables{.tools = conversation.tools, .arguments = options.template_arguments};
  for (const auto& [name, value] : conversation.arguments.items()) {
    variables.arguments[name] = value;
  }
  Json messages = conversation.messages;
  for (size_t m = 0; m < messages.size(); ++m) {
    for_each_text(messages[m], [&](std::string& text) {
      text = row_text(std::move(text), place_of("messages", m), options, notes);
    });
  }
  for_each_text(variables.tools, [&](std::string& text) {
    text = row_text(std::move(text), "tools", options, notes);
  });
  std::vector<Document> documents;
  try {
    const ChatEncoder encoder(options.tokenizer, options.chat,
                              options.special_tokens == DataSection::SpecialTokens::kText);
    ChatNotes unwritten;
    std::vector<EncodedChat> samples = encoder.encode(messages, variables, mask, &unwritten);
    if (!unwritten.emptied.empty()) {
      throw RowProblem(place_of("messages", unwritten.emptied.front()) +
                       ": the chat template writes nothing of this answer, neither its content "
                       "nor its tool_calls; give data.chat_template a template that writes them, "
                       "or give the answer the weight 0");
    }
    if (notes != nullptr) notes->unwritten = std::move(unwritten);
    for (EncodedChat& encoded : samples) {
      documents.push_back(document_of(std::move(encoded), options));
    }
  } catch (const ChatProblem& problem) {
    throw RowProblem(problem.what());
  }
  return documents;
}

std::vector<std::string> members_of_conversations(const RowFormatOptions& options) {
  return {options.name_of("tools"), "system", "chat_template_kwargs"};
}

namespace {

// Rows of KTO hold bad answers too, which must not be trained as good ones.
void refuse_judgement(const Json& row) {
  const auto label = row.find("label");
  if (label == row.end() || !label->is_boolean()) return;
  throw RowProblem(
      "label: a true or false judgement of the answer; set train.loss = \"kto\" and data.format "
      "= \"unpaired-preference\" to learn from both, or, to train the good answers alone, leave "
      "out the rows with label false and the member itself");
}

class MessagesFormat : public RowFormat {
 public:
  explicit MessagesFormat(const RowFormatOptions& options) : options_(options) {}
  std::string_view name() const override { return "messages"; }
  std::vector<Document> read_row(const Json& row, RowNotes* notes) const override {
    require_object(row);
    refuse_judgement(row);
    const Conversation conversation = read_conversation(row, options_, notes);
    std::vector<std::string> read = members_of_conversations(options_);
    read.insert(read.end(), {name_of_messages(row, options_), options_.name_of("weight")});
    note_unread(row, read, "", notes);
    return with_row_weight(
        row, options_,
        encode_conversation(conversation, options_, chat_mask(options_.mask, ChatMask::kAssistant),
                            notes));
  }

 private:
  RowFormatOptions options_;
};

constexpr const char* kAlpacaPlain =
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.\n\n### Instruction:\n{prompt}\n\n### Response:\n";
constexpr const char* kAlpacaContext =
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n### "
    "Instruction:\n{prompt}\n\n### Input:\n{context}\n\n### Response:\n";

// Fills in both names of the template. Inserted text is not expanded again.
std::string fill(const std::string& pattern, const std::string& prompt,
                 const std::string& context) {
  std::string text;
  for (size_t at = 0; at < pattern.size();) {
    if (pattern.compare(at, 8, "{prompt}") == 0) {
      text += prompt;
      at += 8;
    } else if (pattern.compare(at, 9, "{context}") == 0) {
      text += context;
      at += 9;
    } else {
      text += pattern[at++];
    }
  }
  return text;
}

}  // namespace

bool by_chat_template(const RowFormatOptions& options, bool instruction, RowNotes* notes) {
  const bool by_default =
      options.prompt_template == "auto" && instruction && options.chat != nullptr;
  if (by_default && notes != nullptr) ++notes->chat_prompts;
  return by_default || options.prompt_template == "chat";
}

std::string fill_prompt(const std::string& prompt, const std::string& context, bool instruction,
                        const RowFormatOptions& options) {
  std::string pattern = options.prompt_template;
  if (pattern == "alpaca" || (pattern == "auto" && instruction)) {
    pattern = context.empty() ? kAlpacaPlain : kAlpacaContext;
  } else if (pattern == "plain" || pattern == "auto") {
    pattern = context.empty() ? "{prompt}" : "{prompt}\n\n{context}";
  }
  return fill(pattern, prompt, context);
}

namespace {

// PromptRow: the members of a row with a prompt.
struct PromptRow {
  const Json* prompt;
  const Json* completion;
  std::string prompt_key, completion_key, context_key;
  std::string context{};
  bool instruction = false;  // Alpaca's names
};

class PromptFormat : public RowFormat {
 public:
  explicit PromptFormat(const RowFormatOptions& options) : options_(options) {}
  std::string_view name() const override { return "prompt-completion"; }

  std::vector<Document> read_row(const Json& row, RowNotes* notes) const override {
    const PromptRow read = members_of(row);
    refuse_judgement(row);
    if (read.prompt->is_array() && read.completion->is_array()) {
      return read_messages(row, read, notes);
    }
    if (by_chat_template(options_, read.instruction, notes)) return read_chat(row, read, notes);
    note_unread(
        row, {read.prompt_key, read.completion_key, read.context_key, options_.name_of("weight")},
        "", notes);
    const auto text = [&](const std::string& given, const std::string& key) {
      return row_text(given, key, options_, notes);
    };
    const std::string prompt = text(required_text(*read.prompt, read.prompt_key), read.prompt_key);
    const std::string completion =
        text(required_text(*read.completion, read.completion_key), read.completion_key);
    const std::string context = text(read.context, read.context_key);
    return with_row_weight(
        row, options_,
        {encode(fill_prompt(prompt, context, read.instruction, options_), completion)});
  }

 private:
  PromptRow members_of(const Json& row) const {
    require_object(row);
    PromptRow read{};
    read.prompt_key = options_.name_of("prompt");
    read.completion_key = options_.name_of("completion");
    std::string& context_key = read.context_key = options_.name_of("context");
    read.instruction = read.prompt_key == "instruction";
    if (!row.contains(read.prompt_key) && row.contains("instruction")) {
      read.instruction = true;
      read.prompt_key = "instruction";
      if (!row.contains(read.completion_key)) read.completion_key = "output";
      if (!row.contains(context_key)) context_key = "input";
    }
    for (const char* other : {"response", "chosen"}) {
      if (!row.contains(read.completion_key) && row.contains(other)) read.completion_key = other;
    }
    read.prompt = &required_member(row, read.prompt_key);
    read.completion = &required_member(row, read.completion_key);
    const auto context = row.find(context_key);
    if (context != row.end() && !context->is_null()) {
      read.context = required_text(*context, context_key, true);
    }
    return read;
  }

  // Prompt and completion are texts, which become a message each. A context stands behind the
  // prompt in a line of its own, as LLaMA-Factory writes an input.
  std::vector<Document> read_chat(Json row, const PromptRow& read, RowNotes* notes) const {
    const std::string context = read.context.empty() ? "" : "\n" + read.context;
    const Json prompt = message_of("user", required_text(*read.prompt, read.prompt_key) + context);
    const Json answer =
        message_of("assistant", required_text(*read.completion, read.completion_key));
    PromptRow messages = read;
    messages.prompt = &prompt;
    messages.completion = &answer;
    row.erase(read.context_key);
    return read_messages(row, messages, notes);
  }

  static Json message_of(const char* role, const std::string& text) {
    return Json::array({{{"role", role}, {"content", text}}});
  }

  // Prompt and completion are lists of messages, which form one conversation.
  std::vector<Document> read_messages(const Json& row, const PromptRow& read,
                                      RowNotes* notes) const {
    RowFormatOptions options = options_;
    options.keys["messages"] = "messages";
    Json whole = row;
    whole["messages"] = *read.prompt;
    for (const Json& message : *read.completion) whole["messages"].push_back(message);
    const Conversation conversation = read_conversation(whole, options, notes);
    std::vector<std::string> known = members_of_conversations(options_);
    known.insert(known.end(), {read.prompt_key, read.completion_key, options_.name_of("weight")});
    note_unread(row, known, "", notes);
    return with_row_weight(
        row, options_,
        encode_conversation(conversation, options_, chat_mask(options_.mask, ChatMask::kCompletion),
                            notes));
  }

  Document encode(const std::string& prompt, const std::string& completion) const {
    Document document;
    const bool as_text = options_.special_tokens == DataSection::SpecialTokens::kText;
    const size_t asked = as_text ? without_breaks(prompt).text.size() : prompt.size();
    std::string text = prompt + completion;
    EncodedText encoded = encode_row_text(text, options_);
    document.tokens = std::move(encoded.ids);
    document.labels.assign(document.tokens.size(), kNotTrained);
    for (size_t t = 0; t < document.tokens.size(); ++t) {
      const bool answer = encoded.spans[t].end > asked;
      if (answer || options_.mask == Mask::kAll) document.labels[t] = document.tokens[t];
    }
    end_with_eos(document);
    check_ids_of_text(document.tokens, options_);
    if (options_.keep_text) document.text = std::move(text);
    return document;
  }

  // An eos that the tokenizer added itself is trained too.
  void end_with_eos(Document& document) const {
    const std::optional<TokenId> eos = options_.tokenizer->eos();
    if (!eos) return;
    const bool there = !document.tokens.empty() && document.tokens.back() == *eos;
    if (there) {
      document.labels.back() = *eos;
    } else if (options_.add_eos) {
      document.tokens.push_back(*eos);
      document.labels.push_back(*eos);
    }
  }

  RowFormatOptions options_;
};

}  // namespace

std::unique_ptr<RowFormat> make_messages_format(const RowFormatOptions& options) {
  return std::make_unique<MessagesFormat>(options);
}

std::unique_ptr<RowFormat> make_prompt_format(const RowFormatOptions& options) {
  return std::make_unique<PromptFormat>(options);
}

}  // namespace longshore
