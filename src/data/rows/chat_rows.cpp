#include "data/rows/chat_rows.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/texts.h"
#include "data/rows/row_format.h"
#include "data/tokens/dataset.h"
#include "text/chat_encoder.h"
#include "text/tokenizer.h"

namespace longshore {
namespace {

using Mask = DataSection::Mask;

// The texts that tables and Python have for true and false.
constexpr std::array<std::pair<const char*, const char*>, 5> kJudgements = {
    {{"true", "false"}, {"True", "False"}, {"TRUE", "FALSE"}, {"1", "0"}, {"1.0", "0.0"}}};

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

// Returns what the template may have missed in messages that it refused; "" if they have all.
std::string what_is_absent(const Json& messages) {
  for (size_t m = 0; m < messages.size(); ++m) {
    const Json calls = messages[m].value("tool_calls", Json::array());
    for (size_t c = 0; calls.is_array() && c < calls.size(); ++c) {
      const std::string call = place_of(place_of("messages", m) + ".tool_calls", c);
      if (!calls[c].contains("function")) {
        return "; " + call + " has no member \"function\" with its name and arguments";
      }
      if (calls[c]["function"].value("arguments", Json()).is_null()) {
        return "; " + call + ".function has no arguments: write {} where there are none";
      }
    }
  }
  for (size_t m = 0; m < messages.size(); ++m) {
    if (!messages[m].value("content", Json()).is_null()) continue;
    return "; " + place_of("messages", m) + ".content is null or absent: write \"\" for no text";
  }
  return "";
}

}  // namespace

std::vector<Document> encode_conversation(const Conversation& conversation,
                                          const RowFormatOptions& options, ChatMask mask,
                                          RowNotes* notes) {
  if (options.chat == nullptr) {
    throw DataError(
        "conversations need a chat template, and the model directory has none "
        "(chat_template.jinja, or chat_template in tokenizer_config.json); give a Jinja file with "
        "--data.chat_template=FILE");
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
  } catch (const AnswerProblem& problem) {
    throw RowProblem(problem.what());
  } catch (const ChatProblem& problem) {
    throw RowProblem(problem.what() + what_is_absent(conversation.messages));
  }
  return documents;
}

std::vector<std::string> members_of_conversations(const RowFormatOptions& options) {
  return {options.name_of("tools"), options.name_of("system"), "chat_template_kwargs"};
}

namespace {

// Rows of KTO hold bad answers too, which must not be trained as good ones.
void refuse_judgement(const Json& row, const RowFormatOptions& options) {
  const std::string key = name_of_judgement(row, options);
  if (key.empty()) return;
  read_judgement(row[key], key);  // another value has a reason of its own
  throw RowProblem(
      key +
      ": a true or false judgement of the answer; set train.loss = \"kto\" and data.format = "
      "\"unpaired-preference\" to learn from both, or, to train the good answers alone, leave out "
      "the rows whose judgement is false and the member itself");
}

class MessagesFormat : public RowFormat {
 public:
  explicit MessagesFormat(const RowFormatOptions& options) : options_(options) {}
  std::string_view name() const override { return "messages"; }
  std::vector<Document> read_row(const Json& row, RowNotes* notes) const override {
    const std::optional<Json> parsed = with_parsed_messages(row, options_, notes);
    return read(parsed ? *parsed : row, notes);
  }

 private:
  std::vector<Document> read(const Json& row, RowNotes* notes) const {
    require_object(row);
    refuse_judgement(row, options_);
    const Conversation conversation = read_conversation(row, options_, notes);
    std::vector<std::string> read = members_of_conversations(options_);
    read.insert(read.end(), {name_of_messages(row, options_), options_.name_of("weight")});
    note_unread(row, read, "", notes);
    return with_row_weight(
        row, options_,
        encode_conversation(conversation, options_, chat_mask(options_.mask, ChatMask::kAssistant),
                            notes));
  }

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

Json earlier_turns(const Json& row, const RowFormatOptions& options) {
  Json messages = Json::array();
  const std::string name = options.name_of("history");
  const auto history = row.find(name);
  if (history == row.end() || history->is_null()) return messages;
  if (!history->is_array()) {
    throw RowProblem(name + ": expected an array, found " + article_and_type(*history));
  }
  for (size_t i = 0; i < history->size(); ++i) {
    const Json& turn = (*history)[i];
    const std::string place = place_of(name, i);
    if (!turn.is_array() || turn.size() != 2) {
      throw RowProblem(place + ": expected a question and its answer, [\"...\", \"...\"]");
    }
    messages.push_back({{"role", "user"}, {"content", required_text(turn[0], place_of(place, 0))}});
    messages.push_back(
        {{"role", "assistant"}, {"content", required_text(turn[1], place_of(place, 1))}});
  }
  return messages;
}

void refuse_earlier_turns(const Json& row, const RowFormatOptions& options) {
  if (earlier_turns(row, options).empty()) return;
  throw RowProblem(options.chat == nullptr
                       ? "history: earlier turns need a chat template, and the model directory has "
                         "none; give one with data.chat_template"
                       : "history: earlier turns need the chat template; set data.prompt_template "
                         "= \"chat\"");
}

void check_messages(const Json& value, const std::string& key) {
  if (value.is_array()) {
    for (const Json& element : value) {
      if (element.is_object()) continue;
      throw RowProblem(key + ": a list of " +
                       (element.is_string() ? "texts" : "other values than messages") +
                       " is not read; give one text, or messages with \"role\" and \"content\". A "
                       "file that is one object of columns has to be written as a row per line");
    }
  }
  const bool lists = value.is_object() && !value.empty() && value.begin()->is_array();
  if (value.is_object() && !lists && !value.contains("role") && !value.contains("from")) {
    throw RowProblem(key + ": expected a text or messages, found an object with " + keys_of(value));
  }
}

Json as_list(const Json& value, const std::string& key) {
  Json list = messages_of_member(value, key, nullptr);
  return list.is_object() ? Json::array({std::move(list)}) : list;
}

std::string name_of_judgement(const Json& row, const RowFormatOptions& options) {
  const std::string label = options.name_of("label");
  // A run file that names the member has said which one it is.
  for (const std::string& key : {label, std::string(label == "label" ? "kto_tag" : "")}) {
    const auto found = key.empty() ? row.end() : row.find(key);
    if (found != row.end() && !found->is_null()) return key;
  }
  return {};
}

bool read_judgement(const Json& value, const std::string& key) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number() && (value == 0 || value == 1)) return value == 1;
  if (value.is_string()) {
    const std::string_view text = trimmed(value.get_ref<const std::string&>());
    for (const auto& [yes, no] : kJudgements) {
      if (text == yes) return true;
      if (text == no) return false;
    }
  }
  throw RowProblem(
      key + ": expected a judgement of the answer, true or false (or 1 or 0), found " +
      printable(value.dump(), kMaxNameBytes) +
      "; write it so, or, if the member is something else, name another one that the rows lack: "
      "data.keys = { label = \"judgement\" }");
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
    const std::optional<Json> parsed = with_parsed_messages(row, options_, notes);
    return read(parsed ? *parsed : row, notes);
  }

 private:
  std::vector<Document> read(const Json& row, RowNotes* notes) const {
    const PromptRow read = members_of(row);
    refuse_judgement(row, options_);
    if (read.prompt->is_structured() || read.completion->is_structured()) {
      return read_messages(row, read, notes);
    }
    if (by_chat_template(options_, read.instruction, notes)) return read_chat(row, read, notes);
    if (read.instruction) refuse_earlier_turns(row, options_);
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
        {encode(fill_prompt(prompt, context, read.instruction, options_), completion, notes)});
  }

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
    Json prompt = read.instruction ? earlier_turns(row, options_) : Json::array();
    const bool earlier = !prompt.empty();
    prompt.push_back(message_of("user", required_text(*read.prompt, read.prompt_key) + context));
    const Json answer = Json::array(
        {message_of("assistant", required_text(*read.completion, read.completion_key))});
    PromptRow messages = read;
    messages.prompt = &prompt;
    messages.completion = &answer;
    row.erase(read.context_key);
    if (read.instruction) row.erase(options_.name_of("history"));
    // The earlier answers are trained as well, as LLaMA-Factory does.
    return read_messages(row, messages, notes,
                         earlier ? ChatMask::kAssistant : ChatMask::kCompletion);
  }

  static Json message_of(const char* role, const std::string& text) {
    return {{"role", role}, {"content", text}};
  }

  // Prompt and completion are lists of messages, which form one conversation.
  std::vector<Document> read_messages(const Json& row, const PromptRow& read, RowNotes* notes,
                                      ChatMask mask = ChatMask::kCompletion) const {
    check_messages(*read.prompt, read.prompt_key);
    check_messages(*read.completion, read.completion_key);
    if (read.prompt->is_structured() != read.completion->is_structured()) {
      throw RowProblem(read.completion_key + ": " +
                       (read.prompt->is_structured() ? "a text, but " : "messages, but ") +
                       read.prompt_key +
                       (read.prompt->is_structured() ? " holds messages" : " is a text") +
                       "; both must be texts or messages");
    }
    RowFormatOptions options = options_;
    options.keys["messages"] = "messages";
    Json whole = row;
    whole["messages"] = as_list(*read.prompt, read.prompt_key);
    for (const Json& message : as_list(*read.completion, read.completion_key)) {
      whole["messages"].push_back(message);
    }
    const Conversation conversation = read_conversation(whole, options, notes);
    std::vector<std::string> known = members_of_conversations(options_);
    known.insert(known.end(), {read.prompt_key, read.completion_key, options_.name_of("weight")});
    note_unread(row, known, "", notes);
    return with_row_weight(
        row, options_,
        encode_conversation(conversation, options_, chat_mask(options_.mask, mask), notes));
  }

  Document encode(const std::string& prompt, const std::string& completion, RowNotes* notes) const {
    Document document;
    const bool as_text = options_.special_tokens == DataSection::SpecialTokens::kText;
    const size_t asked = as_text ? without_breaks(prompt).text.size() : prompt.size();
    std::string text = prompt + completion;
    EncodedText encoded = encode_row_text(text, options_);
    const auto spans_border = [asked](const TextSpan& token) {
      return token.begin < asked && token.end > asked;
    };
    const auto border = std::ranges::find_if(encoded.spans, spans_border);
    if (notes != nullptr && border != encoded.spans.end()) {
      notes->add_border(std::string_view(text).substr(border->begin, border->end - border->begin));
    }
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
