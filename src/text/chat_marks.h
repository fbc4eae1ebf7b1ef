// ChatMarks: where the parts of a conversation's messages are in the text that a chat template
// writes of them. Each part is rendered once more between two marks, sequences of noncharacters of
// Unicode. The marks only locate: where the text without them is not byte for byte the text that
// the template writes without them, nothing is said. Plain functions, any thread.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"

namespace longshore {

// What stands around a thought in a content.
inline constexpr std::string_view kOpenThought = "<think>";
inline constexpr std::string_view kCloseThought = "</think>";

enum class ChatPart : uint8_t { kContent, kThought, kCall, kTool };

// A part of a message; of kTool, a tool of the whole conversation.
struct PartName {
  size_t message = 0;
  ChatPart part = ChatPart::kContent;
  size_t number = 0;  // of the call, of the tool, or of the text in a content of several parts

  auto operator<=>(const PartName&) const = default;
};

// The begin or the end of a part, where it was found in a text.
struct PartMark {
  PartName name;
  bool end = false;
  size_t at = 0;  // in the text without marks
};

enum class MarkedRoles : uint8_t { kAll, kAssistant };

// The parts that messages and tools have, in order; a blank part is none.
std::vector<PartName> parts_of(const Json& messages, const Json& tools);

// In the order of the text, which begins with `plain`; what else the template may write is
// `behind`. nullopt where the template refuses marks or writes something else because of them.
std::optional<std::vector<PartMark>> find_parts(const ChatTemplate& chat, const Json& messages,
                                                const ChatVariables& variables,
                                                std::string_view plain, std::string_view behind,
                                                MarkedRoles roles);

// What the model thought before its answer, as the message says it; empty: nothing.
std::string_view thought_of(const Json& message);

// What a message says behind its thought, or else the name of its first call; may be empty.
std::string words_of(const Json& message);

// Takes the blanks away that stand right before a part in its own text, and returns them. `name` is
// of a message, never of a tool.
std::string drop_blanks_before(Json& messages, const PartName& name);

// The message without what the model thought.
Json without_thought(const Json& message);

}  // namespace longshore
