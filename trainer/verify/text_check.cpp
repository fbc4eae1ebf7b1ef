#include "trainer/verify/text_check.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <sstream>

#include "base/errors.h"
#include "base/random.h"
#include "base/texts.h"
#include "text/chat_encoder.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace longshore {
namespace {

constexpr std::array<const char*, 7> kTexts = {
    "The harbour lies still at seven in the morning; two boats come in.",
    "  leading spaces, tabs\tand\n\nempty lines  ",
    "def area(r: float) -> float:\n    return 3.14159 * r ** 2\n",
    "1234567890 + 0.5e-3 = ?",
    "Übergrößenträger, façade, naïve, œuvre, Привет, Ελλάδα",
    "日本語のテキスト、한국어, العربية, हिन्दी",
    "👩‍🚀🧪 emoji, joined and plain: 🙂",
};

constexpr const char* kLongText =
    "The harbour lies still at seven in the morning. Two boats come in, low with their catch, and "
    "the gulls know it before anybody on the quay does. \"What have you got?\" asks the man with "
    "the cart. \"Less than last week,\" says the older of the two fishermen, \"and more than I "
    "feared.\" They count 42 crates, at 18.50 each; that makes 777. In winter, when the wind turns "
    "north-east, nobody leaves for days: nets are mended, accounts are settled, and stories told "
    "that everyone has heard. Ein Schiff aus Bremen liegt noch vor der Mole; es wartet auf den "
    "Lotsen. for (int i = 0; i < 10; ++i) { total += price[i]; } 港は静かだ。 The children are "
    "late for school again. ";

std::string percent_of(int64_t part, int64_t whole) {
  return std::to_string(part) + " of " + std::to_string(whole);
}

void check_round_trips(const Tokenizer& tokenizer, Findings& findings) {
  int64_t same = 0;
  for (const char* text : kTexts) {
    const std::string back = tokenizer.decode(tokenizer.encode(text, SpecialTokens::kNone), false);
    if (back == text) {
      ++same;
      continue;
    }
    findings.add(Verdict::kWarning, "tokenizer", "\"" + std::string(text) + "\"",
                 "comes back as \"" + back + "\"");
  }
  findings.add(Verdict::kOk, "tokenizer", "texts",
               percent_of(same, static_cast<int64_t>(kTexts.size())) +
                   " texts are the same after encoding and decoding");
}

void check_ids(const Tokenizer& tokenizer, const ArchSpec& arch, Findings& findings) {
  if (tokenizer.id_limit() > arch.vocabulary) {
    findings.add(Verdict::kFailed, "tokenizer", "ids",
                 "the greatest is " + std::to_string(tokenizer.id_limit() - 1) +
                     ", but the embedding has " + std::to_string(arch.vocabulary) +
                     " rows: resize it, or use the tokenizer that belongs to the model");
  } else {
    findings.add(Verdict::kOk, "tokenizer", "ids",
                 std::to_string(tokenizer.vocabulary_size()) + " tokens in " +
                     std::to_string(arch.vocabulary) + " rows");
  }
  for (const int64_t id : arch.eos_tokens) {
    if (id >= 0 && id < tokenizer.id_limit()) continue;
    findings.add(Verdict::kWarning, "tokenizer", "eos",
                 "config.json ends texts with " + std::to_string(id) +
                     ", which the tokenizer does not have");
  }
  if (!tokenizer.eos().has_value()) {
    findings.add(Verdict::kWarning, "tokenizer", "eos",
                 "the tokenizer has none: nothing teaches the model where a text ends");
  }
}

struct Sample {
  const char* name;
  Json messages;
  Json tools = nullptr;
  Json arguments = Json::object();
};

Json message(const char* role, const char* content) {
  return {{"role", role}, {"content", content}};
}

std::vector<Sample> sample_conversations() {
  const Json question = message("user", "Which town lies north of the harbour?");
  const Json answer = message("assistant", "Northport does, nine miles up the coast.");
  const Json more = message("user", "And which one south?");
  const Json last = message("assistant", "Only Gullstead, and that is hardly a town.");
  const Json system = message("system", "You know the coast by heart.");
  const Json tool = {{"type", "function"},
                     {"function",
                      {{"name", "tide"},
                       {"description", "The tide at a place."},
                       {"parameters",
                        {{"type", "object"},
                         {"properties", {{"place", {{"type", "string"}}}}},
                         {"required", Json::array({"place"})}}}}}};
  Json thoughtful = answer, last_thoughtful = last;
  thoughtful["reasoning_content"] = "Up the coast means north.";
  last_thoughtful["reasoning_content"] = "Few live there.";
  const Json thoughts = Json::array({question, thoughtful, more, last_thoughtful});
  Json call = message("assistant", "");
  call["tool_calls"] =
      Json::array({{{"id", "call00001"},
                    {"type", "function"},
                    {"function", {{"name", "tide"}, {"arguments", {{"place", "Gullstead"}}}}}}});
  Json result = message("tool", "high at seven");
  result["tool_call_id"] = "call00001";
  result["name"] = "tide";
  const Json called = Json::array({question, call, result});
  Json after_result = called;
  after_result.push_back(answer);
  return {{"one answer", Json::array({question, answer}), nullptr},
          {"two answers", Json::array({question, answer, more, last}), nullptr},
          {"a system message", Json::array({system, question, answer}), nullptr},
          {"tools", Json::array({question, answer}), Json::array({tool})},
          {"thoughts", thoughts},
          {"thoughts turned off", thoughts, nullptr, {{"enable_thinking", false}}},
          {"a call", called, Json::array({tool})},
          {"a call and an answer", after_result, Json::array({tool})},
          {"an empty answer", Json::array({question, message("assistant", ""), more, last})}};
}

// Answers that begin with the letters of a word with which the template asks for them.
std::vector<Sample> sharing_letters(const ChatTemplate& chat) {
  const Json messages = Json::array({message("user", "Which town lies north of the harbour?")});
  const std::string asked = chat.render(messages, {.add_generation_prompt = true}).text;
  const std::string plain = chat.render(messages, {}).text;
  std::vector<Sample> samples;
  if (!asked.starts_with(plain)) return samples;
  std::istringstream opening(asked.substr(plain.size()));
  for (std::string word; opening >> word && samples.size() < 8;) {
    const std::string letters = word.substr(0, 2);
    if (letters.find('<') != std::string::npos || first_invalid_utf8(letters)) continue;
    const std::string content = letters + "o it is, Northport.";
    samples.push_back(
        {"shared letters", Json::array({messages[0], message("assistant", content.c_str())})});
  }
  return samples;
}

std::vector<std::string> answers_of(const Json& messages) {
  std::vector<std::string> answers;
  for (const Json& one : messages) {
    if (one.at("role") == "assistant") answers.push_back(one.at("content").get<std::string>());
  }
  return answers;
}

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class TemplateCheck {
 public:
  TemplateCheck(const Tokenizer& tokenizer, const ChatTemplate& chat, Findings& findings)
      : tokenizer_(tokenizer), chat_(chat), encoder_(&tokenizer, &chat), findings_(findings) {}

  void run() {
    std::vector<Sample> samples = sample_conversations();
    try {
      for (Sample& sample : sharing_letters(chat_)) samples.push_back(std::move(sample));
    } catch (const ChatProblem&) {
      // Said of the first conversation.
    }
    for (const Sample& sample : samples) {
      try {
        look_at(sample);
      } catch (const AnswerProblem& problem) {
        findings_.add(Verdict::kWarning, "template", sample.name,
                      "such rows are refused: " + std::string(problem.what()));
      } catch (const ChatProblem& problem) {
        findings_.add(Verdict::kSkipped, "template", sample.name,
                      "the template takes none: " + std::string(problem.what()));
      }
    }
    if (!ends_.empty()) {
      findings_.add(Verdict::kWarning, "template", "ends",
                    "answers end with '" + ends_ + "', which does not end a generated text " +
                        "(eos_token_id of generation_config.json)");
    }
  }

 private:
  void look_at(const Sample& sample) {
    ChatVariables variables;
    variables.tools = sample.tools;
    variables.arguments = sample.arguments;
    ChatNotes notes;
    std::string trained;
    int64_t tokens = 0, all = 0;
    for (const EncodedChat& chat :
         encoder_.encode(sample.messages, variables, ChatMask::kAssistant, &notes)) {
      std::vector<TokenId> ids;
      for (size_t i = 0; i < chat.ids.size(); ++i) {
        if (chat.trained[i]) ids.push_back(chat.ids[i]);
      }
      trained += tokenizer_.decode(ids, false) + "\n";
      tokens += static_cast<int64_t>(ids.size());
      all += static_cast<int64_t>(chat.ids.size());
      if (!ids.empty()) note_end(ids.back());
    }
    for (const std::string& answer : answers_of(sample.messages)) {
      const size_t found = answer.empty() ? 1 : occurrences(trained, answer);
      if (found == 1) continue;
      findings_.add(Verdict::kWarning, "template", sample.name,
                    "an answer is trained " + std::to_string(found) + " times: \"" + answer + "\"");
    }
    say_what_is_not_written(sample, notes);
    if (!notes.emptied.empty()) return;
    findings_.add(Verdict::kOk, "template", sample.name,
                  percent_of(tokens, all) + " tokens are trained");
  }

  // Many templates know no tools and no thoughts: that is no fault, and `prepare` warns of rows
  // that have them. Thoughts that the sample turns off are not looked for.
  void say_what_is_not_written(const Sample& sample, const ChatNotes& notes) {
    const auto say = [&](Verdict verdict, const char* what, int64_t count) {
      if (count == 0) return;
      findings_.add(verdict, "template", sample.name,
                    std::to_string(count) + " " + what +
                        " are not written by the template: the model does not see them");
    };
    say(Verdict::kSkipped, "calls of tools", notes.calls);
    say(Verdict::kSkipped, "tools", notes.tools);
    if (sample.arguments.empty()) say(Verdict::kSkipped, "thoughts", notes.thoughts);
    say(Verdict::kWarning, "system messages or results of tools", notes.instructions);
    say(Verdict::kWarning, "contents", notes.texts);
    if (notes.emptied.empty()) return;
    findings_.add(Verdict::kSkipped, "template", sample.name,
                  "nothing of an answer is written by the template: such rows are refused");
  }

  void note_end(TokenId id) {
    const std::vector<TokenId>& stops = tokenizer_.stop_ids();
    if (std::ranges::find(stops, id) != stops.end()) return;
    ends_ = tokenizer_.token_of(id).value_or(std::to_string(id));
  }

  const Tokenizer& tokenizer_;
  const ChatTemplate& chat_;
  ChatEncoder encoder_;
  Findings& findings_;
  std::string ends_;  // what answers end with, where it ends no generated text
};

std::optional<Tokenizer> tokenizer_of(const std::string& directory) {
  std::error_code ignored;
  if (!std::filesystem::exists(directory + "/tokenizer.json", ignored)) return std::nullopt;
  return Tokenizer::load(directory);
}

}  // namespace

void check_texts(const std::string& directory, const ArchSpec& arch, Findings& findings) {
  try {
    const std::optional<Tokenizer> tokenizer = tokenizer_of(directory);
    if (!tokenizer) {
      findings.add(Verdict::kSkipped, "tokenizer", "tokenizer.json",
                   "there is none: such a model trains on rows of token ids");
      return;
    }
    check_ids(*tokenizer, arch, findings);
    check_round_trips(*tokenizer, findings);
    const std::optional<ChatTemplate> chat = ChatTemplate::load(directory, *tokenizer, {});
    if (chat) {
      TemplateCheck(*tokenizer, *chat, findings).run();
    } else {
      findings.add(Verdict::kSkipped, "template", "chat_template",
                   "there is none: conversations need data.chat_template");
    }
  } catch (const DataError& error) {
    findings.add(Verdict::kFailed, "tokenizer", "files", error.what());
  }
}

Texts sample_texts(const std::string& directory, const ArchSpec& arch, int64_t longest) {
  std::vector<int64_t> ids;
  try {
    if (const std::optional<Tokenizer> tokenizer = tokenizer_of(directory)) {
      std::string text = kLongText;
      while (static_cast<int64_t>(text.size()) < 8 * longest) text += kLongText;
      for (const TokenId id : tokenizer->encode(text, SpecialTokens::kAdd)) {
        if (id < arch.vocabulary) ids.push_back(id);
      }
    }
  } catch (const DataError&) {
    ids.clear();  // said by check_texts
  }
  Texts texts;
  size_t used = 0;
  for (const int64_t length : {longest, longest / 3, int64_t{1}}) {
    if (length == 0) continue;
    std::vector<int64_t> text;
    for (int64_t i = 0; i < length; ++i, ++used) {
      const uint32_t word = philox4x32({static_cast<uint32_t>(used), 0, 0, 0}, {})[0];
      text.push_back(ids.empty() ? static_cast<int64_t>(word) % arch.vocabulary
                                 : ids[used % ids.size()]);
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace longshore
