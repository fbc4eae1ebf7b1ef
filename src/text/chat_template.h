// ChatTemplate: conversations as texts, exactly as transformers' apply_chat_template writes them
// for a model directory. Immutable after loading; any number of threads may use one at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"

struct tokc_chat;

namespace longshore {

// What is wrong with a conversation, as the template or the masks see it; the caller knows which
// row it is.
class ChatProblem : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What a template is given beside messages.
struct ChatVariables {
  Json tools = nullptr;  // an array, or null
  bool add_generation_prompt = false;
  Json arguments = Json::object();  // more names that the template may read
};

struct RenderedChat {
  std::string text;
  std::vector<TextSpan> generated;  // what {% generation %} blocks made, in order
};

struct ChatTemplateOptions {
  std::string file{};               // a Jinja file in place of the directory's; empty: none
  std::string date = "2024-07-26";  // what strftime_now tells
  bool training = false;            // the training template for what is found (training_template.h)
};

class ChatTemplate {
 public:
  // As transformers chooses: chat_template.jinja and additional_chat_templates/NAME.jinja, else the
  // chat_template of tokenizer_config.json, which may be a list of named ones; nullopt where the
  // directory has none. Special tokens get the names they have in `tokenizer`. DataError for a
  // template that cannot be read, or has no training template where that is asked for.
  static std::optional<ChatTemplate> load(const std::string& directory, const Tokenizer& tokenizer,
                                          const ChatTemplateOptions& options);
  // `origin` stands for the file in error texts.
  static ChatTemplate from_text(const std::string& source, const Tokenizer& tokenizer,
                                const std::string& date, const std::string& origin);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // ChatProblem where the template refuses the conversation.
  RenderedChat render(const Json& messages, const ChatVariables& variables) const;
  // Whether contents that are lists of parts are written as their texts. Many templates print such
  // a list as Python does, leave it out, or fail: they want the joined text.
  bool reads_parts(bool with_tools) const { return with_tools ? tool_parts_ : parts_; }
  // What the template ends every text with, though nobody asks for an answer: the opening of one.
  // Empty for most. Llama 3's first template has it.
  const std::string& unasked_opening() const { return unasked_opening_; }
  bool uses_date() const;
  // The template as it was found, or the training template in its place.
  const std::string& text() const { return text_; }
  // Whether the template's text has the word, as the name of a member that it may read.
  bool names(std::string_view member) const;
  // Which published template a training template is in place of; empty: as it was found.
  const std::string& replaced() const { return replaced_; }
  // Changes with the template's text and date.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  struct Free {
    void operator()(tokc_chat* chat) const noexcept;
  };
  using Handle = std::unique_ptr<tokc_chat, Free>;
  ChatTemplate() = default;
  static Handle parse(const std::string& source, const Tokenizer& tokenizer,
                      const std::string& date, const std::string& origin);
  const tokc_chat* chat_for(bool with_tools) const;
  bool prints_parts(bool with_tools) const;
  std::string find_unasked_opening(const std::string& bos) const;

  Handle default_;
  Handle tool_use_;  // empty: the default serves
  bool parts_ = true, tool_parts_ = true;
  std::string unasked_opening_, text_, replaced_;
  std::string tool_use_text_;
  uint64_t fingerprint_ = 0;
};

// The template without its {% generation %} marks, which transformers alone knows: it writes the
// same texts, with the same whitespace and the same scopes.
std::string without_generation_marks(std::string_view source);

}  // namespace longshore
