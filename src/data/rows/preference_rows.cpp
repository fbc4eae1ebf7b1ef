#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/texts.h"
#include "data/rows/chat_rows.h"
#include "data/tokens/dataset.h"

namespace longshore {
namespace {

using Mask = DataSection::Mask;

// The members with a row's answers: of a pair, chosen first, or of one with a label.
using Members = std::span<const char* const>;
constexpr std::array kPair = {"chosen", "rejected"};
constexpr std::array kPairIds = {"chosen_ids", "rejected_ids"};
constexpr std::array kAnswer = {"completion"};
constexpr std::array kAnswerIds = {"completion_ids"};
constexpr const char* kLabel = "label";

// Data sets of conversations in columns name the user's question so.
constexpr std::array kQuestions = {"question", "input"};

bool has(const Json& row, const std::string& key) {
  const auto member = row.find(key);
  return member != row.end() && !member->is_null();
}

// Answers: a row's prompt and answers, either all texts or all lists of messages.
struct Answers {
  Json prompt;
  std::vector<Json> answers;
};

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// Splits two texts where they differ. A space before that place belongs to the answers, since most
// tokenizers join it with the word behind it.
Answers split_texts(const std::string& chosen, const std::string& rejected) {
  const auto [fork, other] = std::ranges::mismatch(chosen, rejected);
  auto at = static_cast<size_t>(fork - chosen.begin());
  if (at == chosen.size() || at == rejected.size()) {
    throw RowProblem(
        "chosen and rejected: one of the texts begins with all of the other, so it does not show "
        "where the prompt ends; give the prompt in a member \"prompt\"");
  }
  while (at > 0 && is_continuation(chosen[at])) --at;
  if (at > 0 && chosen[at - 1] == ' ') --at;
  if (at == 0) {
    throw RowProblem(
        "chosen and rejected: the texts have no common beginning, which would be the prompt; give "
        "the prompt in a member \"prompt\"");
  }
  return {chosen.substr(0, at), {chosen.substr(at), rejected.substr(at)}};
}

// Splits two conversations at the first turn that differs.
Answers split_messages(const Json& chosen, const Json& rejected) {
  size_t shared = 0;
  while (shared < std::min(chosen.size(), rejected.size()) && chosen[shared] == rejected[shared]) {
    ++shared;
  }
  if (shared == 0) {
    throw RowProblem(
        "chosen and rejected: the conversations have no common beginning, which would be the "
        "prompt; give the prompt as messages in a member \"prompt\"");
  }
  Answers read{Json::array(), {Json::array(), Json::array()}};
  for (size_t i = 0; i < shared; ++i) read.prompt.push_back(chosen[i]);
  for (size_t i = shared; i < chosen.size(); ++i) read.answers[0].push_back(chosen[i]);
  for (size_t i = shared; i < rejected.size(); ++i) read.answers[1].push_back(rejected[i]);
  return read;
}

const char* kind_of(const Json& value) {
  return value.is_string() ? "a text" : "messages";
}

// Adds the notes of an answer's conversation; those of a pair both have the prompt's members.
void add_notes(const RowNotes& other, RowNotes& notes) {
  notes.unwritten.calls += other.unwritten.calls;
  notes.unwritten.thoughts += other.unwritten.thoughts;
  notes.unwritten.instructions += other.unwritten.instructions;
  notes.unwritten.texts += other.unwritten.texts;
  notes.unwritten.tools += other.unwritten.tools;
  notes.special_tokens += other.special_tokens;
  notes.chat_prompts += other.chat_prompts;
  notes.merged_borders = std::max(notes.merged_borders, other.merged_borders);
  if (notes.border_piece.empty()) notes.border_piece = other.border_piece;
  for (const auto& [name, count] : other.unread) {
    int64_t& noted = notes.unread[name];
    noted = std::max(noted, count);
  }
}

class PreferenceFormat : public RowFormat {
 public:
  PreferenceFormat(const RowFormatOptions& options, bool paired)
      : options_(options),
        paired_(paired),
        answers_(paired ? Members(kPair) : Members(kAnswer)),
        ids_(paired ? Members(kPairIds) : Members(kAnswerIds)) {}
  std::string_view name() const override { return paired_ ? "preference" : "unpaired-preference"; }
  bool gives_answers() const override { return true; }
  bool gives_pairs() const override { return paired_; }

  std::vector<Document> read_row(const Json& row, RowNotes* notes) const override {
    require_object(row);
    const std::optional<Json> parsed = with_parsed_messages(row, options_, notes);
    const Json& read = parsed ? *parsed : row;
    if (paired_) {
      std::vector<Document> documents = read_answers(read, notes);
      documents.back().desirable = false;
      return documents;
    }
    const bool desirable = read_label(read);
    std::vector<Document> documents = read_answers(with_completion(read, notes), notes);
    documents.front().desirable = desirable;
    return documents;
  }

 private:
  std::string key_of(const char* member) const { return options_.name_of(member); }
  const Json& answer_of(const Json& row, size_t side) const {
    return row.at(key_of(answers_[side]));
  }

  bool read_label(const Json& row) const {
    std::string key = name_of_judgement(row, options_);
    if (key.empty()) key = key_of(kLabel);
    return read_judgement(required_member(row, key), key);
  }

  // Returns a judged row with its answer as the completion: of Alpaca's names the output, of
  // messages the last one.
  Json with_completion(const Json& row, RowNotes* notes) const {
    const std::string key = key_of(kAnswer[0]);
    Json read = row;
    if (has(row, key) || has(row, key_of(kAnswerIds[0]))) return read;
    for (const char* other : {"output", "response"}) {
      if (has(row, key) || !has(row, other)) continue;
      read[key] = row[other];
      read.erase(other);
      return read;
    }
    const std::string name = name_of_messages(row, options_);
    if (!has(row, name)) return read;
    const Json list = messages_of_member(row[name], name, notes);
    if (!list.is_array() || list.size() < 2) {
      throw RowProblem(name + ": expected messages that end with the judged answer");
    }
    if (!is_answer(list.back())) {
      throw RowProblem(place_of(name, list.size() - 1) +
                       ": the last message is judged, but it is not the assistant's");
    }
    read.erase(name);
    read[key_of("prompt")] = Json(list.begin(), list.end() - 1);
    read[key] = Json::array({list.back()});
    return read;
  }

  std::vector<Document> read_answers(const Json& row, RowNotes* notes) const {
    if (std::ranges::any_of(ids_, [&](const char* ids) { return has(row, key_of(ids)); })) {
      return read_token_ids(row, notes);
    }
    for (const char* answer : answers_) check_answer(row, answer);
    if (options_.tokenizer == nullptr) {
      throw DataError(
          "rows with texts or messages need the model's tokenizer.json, and there is none");
    }
    if (row[key_of(answers_[0])].is_string()) return read_texts(row, notes);
    return read_messages(row, notes);
  }

  // Notes the members that are neither in `read` nor answers or their label.
  void note_others(const Json& row, std::vector<std::string> read, Members answers,
                   RowNotes* notes) const {
    for (const char* answer : answers) read.push_back(key_of(answer));
    if (!paired_) read.insert(read.end(), {key_of(kLabel), "kto_tag"});
    note_unread(row, read, "", notes);
  }

  void check_answer(const Json& row, const char* member) const {
    const std::string key = key_of(member);
    const Json& answer = required_member(row, key);
    if (!answer.is_string() && !answer.is_array() && !answer.is_object()) {
      throw RowProblem(key + ": expected a string or messages, found " + article_and_type(answer));
    }
    if (answer.is_structured() && answer.empty()) throw RowProblem(key + ": holds no message");
    check_messages(answer, key);
    const Json& first = row.at(key_of(answers_[0]));
    if (first.is_string() != answer.is_string()) {
      throw RowProblem(key + ": " + kind_of(answer) + ", but " + key_of(answers_[0]) + " is " +
                       kind_of(first) + "; both answers must be of one kind");
    }
  }

  std::vector<Document> read_token_ids(const Json& row, RowNotes* notes) const {
    const std::string prompt_key = key_of("prompt_ids");
    note_others(row, {prompt_key}, ids_, notes);
    const std::vector<TokenId> prompt = required_ids(row, prompt_key);
    std::vector<Document> documents(ids_.size());
    for (size_t side = 0; side < documents.size(); ++side) {
      const std::vector<TokenId> answer = required_ids(row, key_of(ids_[side]));
      Document& document = documents[side];
      document.tokens = prompt;
      document.labels.assign(prompt.size(), kNotTrained);
      document.tokens.insert(document.tokens.end(), answer.begin(), answer.end());
      document.labels.insert(document.labels.end(), answer.begin(), answer.end());
    }
    return documents;
  }

  std::vector<TokenId> required_ids(const Json& row, const std::string& key) const {
    std::vector<TokenId> ids =
        read_ids(required_member(row, key), key, options_.model_vocabulary_size);
    if (ids.empty()) throw RowProblem(key + ": the array is empty");
    return ids;
  }

  std::vector<Document> read_texts(const Json& row, RowNotes* notes) const {
    std::vector<std::string> answers;
    for (size_t side = 0; side < answers_.size(); ++side) {
      answers.push_back(required_text(answer_of(row, side), key_of(answers_[side])));
    }
    const bool instruction = !has(row, key_of("prompt")) && has(row, "instruction");
    const std::string prompt_key = instruction ? "instruction" : key_of("prompt");
    const std::string context_key = instruction ? "input" : key_of("context");
    if (!has(row, prompt_key)) {
      const std::string question = question_of(row);
      if (!question.empty()) return read_columns(row, question, notes);
    }
    const bool as_text = has(row, prompt_key) && row[prompt_key].is_string();
    if (as_text && by_chat_template(options_, instruction, notes)) {
      return read_columns(joined(row, prompt_key, context_key), prompt_key, notes);
    }
    note_others(row, {prompt_key, context_key}, answers_, notes);
    for (size_t side = 0; side < answers.size(); ++side) {
      const std::string key = key_of(answers_[side]);
      answers[side] = row_text(std::move(answers[side]), key, options_, notes);
    }
    if (!has(row, prompt_key) && paired_) {
      if (options_.prompt_template == "chat") {
        throw RowProblem("has no " + prompt_key +
                         ": the prompt is a part of the answers, which data.prompt_template = "
                         "\"chat\" cannot write; give it in a member of its own");
      }
      const Answers split = split_texts(answers[0], answers[1]);
      return encode_texts(split.prompt, {split.answers[0], split.answers[1]}, notes);
    }
    const Json& prompt = required_member(row, prompt_key);
    if (prompt.is_structured()) {
      throw RowProblem(prompt_key + ": messages, but " + key_of(answers_[0]) +
                       " is a text; give the answers as messages too");
    }
    std::string context;
    const auto text = [&](const Json& value, const std::string& key, bool may_be_empty) {
      return row_text(required_text(value, key, may_be_empty), key, options_, notes);
    };
    if (has(row, context_key)) context = text(row[context_key], context_key, true);
    if (instruction) refuse_earlier_turns(row, options_);
    return encode_texts(
        fill_prompt(text(prompt, prompt_key, false), context, instruction, options_), answers,
        notes);
  }

  // Returns the row with its context behind the prompt, in a line of its own.
  static Json joined(Json row, const std::string& prompt_key, const std::string& context_key) {
    if (has(row, context_key)) {
      const std::string context = required_text(row[context_key], context_key, true);
      if (!context.empty()) row[prompt_key] = row[prompt_key].get<std::string>() + "\n" + context;
      row.erase(context_key);
    }
    return row;
  }

  // Returns the name of the column with the question, or "".
  std::string question_of(const Json& row) const {
    for (const char* name : kQuestions) {
      if (has(row, name)) return name;
    }
    return "";
  }

  // Reads a conversation of one question in columns: system, question, chosen and rejected.
  std::vector<Document> read_columns(const Json& row, const std::string& question,
                                     RowNotes* notes) const {
    const auto message = [](const char* role, const Json& text) {
      return Json::array({{{"role", role}, {"content", text}}});
    };
    Answers read{question == "instruction" ? earlier_turns(row, options_) : Json::array(), {}};
    if (read.prompt.empty()) {
      note_members(row, question, notes);
    } else {
      Json others = row;
      others.erase(options_.name_of("history"));
      note_members(others, question, notes);
    }
    read.prompt.push_back(message("user", required_text(row[question], question))[0]);
    for (size_t side = 0; side < answers_.size(); ++side) {
      read.answers.push_back(message("assistant", answer_of(row, side)));
    }
    return encode_messages(row, read, notes);
  }

  std::vector<Document> read_messages(const Json& row, RowNotes* notes) const {
    std::vector<Json> answers;
    for (size_t side = 0; side < answers_.size(); ++side) {
      answers.push_back(as_list(answer_of(row, side), key_of(answers_[side])));
    }
    std::string prompt_key = key_of("prompt");
    // Data sets in ShareGPT's form have the prompt in `conversations`, and one message for answer.
    const bool single = answer_of(row, 0).is_object();
    if (single && !has(row, prompt_key)) prompt_key = "conversations";
    note_members(row, prompt_key, notes);
    if (has(row, prompt_key) && !row[prompt_key].is_string()) {
      check_messages(row[prompt_key], prompt_key);
      return encode_messages(row, {as_list(row[prompt_key], prompt_key), std::move(answers)},
                             notes);
    }
    if (!paired_) {
      throw RowProblem(prompt_key + ": expected messages, found " +
                       article_and_type(required_member(row, prompt_key)));
    }
    if (!answers[0].is_array() || !answers[1].is_array()) {
      throw RowProblem("chosen and rejected: expected arrays of messages");
    }
    const std::string given =
        has(row, prompt_key) ? row[prompt_key].get<std::string>() : std::string();
    const bool shared =
        !answers[0].empty() && !answers[1].empty() && answers[0][0] == answers[1][0];
    if (has(row, prompt_key) && !shared) refuse_text_prompt(prompt_key);
    const Answers split = split_messages(answers[0], answers[1]);
    if (has(row, prompt_key) && !is_message_of(split.prompt, given)) refuse_text_prompt(prompt_key);
    return encode_messages(row, split, notes);
  }

  [[noreturn]] void refuse_text_prompt(const std::string& prompt_key) const {
    throw RowProblem(prompt_key + ": a text, but " + key_of(answers_[0]) +
                     " holds messages, and none that both answers begin with is this text; give "
                     "the prompt as messages, or name another member with data.keys");
  }

  void note_members(const Json& row, const std::string& prompt_key, RowNotes* notes) const {
    std::vector<std::string> read = members_of_conversations(options_);
    read.push_back(prompt_key);
    note_others(row, std::move(read), answers_, notes);
  }

  std::vector<Document> encode_messages(const Json& row, const Answers& read,
                                        RowNotes* notes) const {
    std::vector<Document> documents;
    for (size_t side = 0; side < answers_.size(); ++side) {
      RowNotes noted;
      documents.push_back(encode_side(row, read.prompt, read.answers[side], answers_[side], noted));
      if (notes != nullptr) add_notes(noted, *notes);
    }
    return documents;
  }

  Document encode_side(const Json& row, const Json& prompt, const Json& answer, const char* member,
                       RowNotes& notes) const {
    const std::string key = key_of(member);
    if (!prompt.is_array() || !answer.is_array()) {
      throw RowProblem(key + ": expected the prompt and the answer as arrays of messages");
    }
    if (prompt.empty()) throw RowProblem("prompt: the array is empty");
    if (answer.empty()) {
      throw RowProblem(key + ": holds no answer behind the messages that both have in common");
    }
    RowFormatOptions options = options_;
    options.keys["messages"] = key;
    Json whole = row;
    whole[key] = prompt;
    for (const Json& message : answer) whole[key].push_back(message);
    Conversation conversation = read_conversation(whole, options, &notes);
    const size_t answers = answer.size();
    const size_t first = conversation.messages.size() - answers;
    if (conversation.messages[first]["role"] != "assistant") {
      throw RowProblem(key + ": the first message of the answer is not the assistant's");
    }
    // Earlier answers belong to the prompt.
    for (size_t i = 0; i < first; ++i) {
      if (conversation.messages[i]["role"] == "assistant") conversation.messages[i]["weight"] = 0;
    }
    std::vector<Document> samples =
        encode_conversation(conversation, options, ChatMask::kAssistant, &notes);
    if (samples.size() != 1) {
      throw RowProblem(key + ": the chat template writes its messages as " +
                       std::to_string(samples.size()) +
                       " samples, but an answer must be one; data.chat_template names another "
                       "template");
    }
    return std::move(samples.front());
  }

  // Encodes prompt and answer as one text. The answers begin where the tokens differ from those of
  // the prompt alone, at the same position for both of a pair.
  std::vector<Document> encode_texts(const std::string& prompt,
                                     const std::vector<std::string>& answers,
                                     RowNotes* notes) const {
    std::string question = prompt;
    const std::vector<TokenId> asked = encode_row_text(question, options_).ids;
    std::vector<Document> documents(answers.size());
    size_t shared = asked.size();
    std::string piece;
    for (size_t side = 0; side < answers.size(); ++side) {
      Document& document = documents[side];
      std::string text = prompt + answers[side];
      EncodedText encoded = encode_row_text(text, options_);
      document.tokens = std::move(encoded.ids);
      end_with_eos(document.tokens);
      check_ids_of_text(document.tokens, options_);
      const auto found = std::ranges::mismatch(asked, document.tokens).in1;
      const auto fork = static_cast<size_t>(found - asked.begin());
      if (fork < shared && fork < encoded.spans.size()) {
        const TextSpan& span = encoded.spans[fork];
        piece = text.substr(span.begin, span.end - span.begin);
      }
      shared = std::min(shared, fork);
      if (options_.keep_text) document.text = std::move(text);
    }
    const bool ended = !asked.empty() && asked.back() == options_.tokenizer->eos();
    if (notes != nullptr && shared < asked.size() - (ended ? 1 : 0)) notes->add_border(piece);
    for (Document& document : documents) {
      document.labels = document.tokens;
      std::fill_n(document.labels.begin(), std::min(shared, document.labels.size()), kNotTrained);
    }
    return documents;
  }

  void end_with_eos(std::vector<TokenId>& ids) const {
    if (!options_.add_eos) return;
    const std::optional<TokenId> eos = options_.tokenizer->eos();
    if (!eos) {
      throw DataError(
          "the tokenizer names no eos token to end answers with; give tokenizer_config.json an "
          "eos_token, or set data.add_eos = false");
    }
    if (ids.empty() || ids.back() != *eos) ids.push_back(*eos);
  }

  RowFormatOptions options_;
  bool paired_;
  Members answers_, ids_;  // the members with the answers, as texts or messages and as token ids
};

bool has_all(const Json& row, Members members, const RowFormatOptions& options) {
  return std::ranges::all_of(members,
                             [&](const char* member) { return has(row, options.name_of(member)); });
}

}  // namespace

bool holds_pair(const Json& row, const RowFormatOptions& options) {
  return has_all(row, kPair, options) || has_all(row, kPairIds, options);
}

bool holds_judged_answer(const Json& row, const RowFormatOptions& options) {
  if (name_of_judgement(row, options).empty()) return false;
  if (has_all(row, kAnswer, options) || has_all(row, kAnswerIds, options)) return true;
  const bool alpaca = has(row, "instruction") || has(row, options.name_of("prompt"));
  if (alpaca && (has(row, "output") || has(row, "response"))) return true;
  return has(row, name_of_messages(row, options));
}

std::unique_ptr<RowFormat> make_preference_format(const RowFormatOptions& options, bool paired) {
  if (options.mask != Mask::kAuto && options.mask != Mask::kCompletion) {
    throw DataError(
        "data.mask selects other tokens than the judged answers, which are scored; set data.mask = "
        "\"auto\"");
  }
  return std::make_unique<PreferenceFormat>(options, paired);
}

}  // namespace longshore
