// Finds the parts of a conversation's messages in the text that a chat template writes.
// Each part is put between two marks (sequences of noncharacters of Unicode) and the conversation
// is rendered again. The marks count only if the text without them equals, byte for byte, the text
// rendered without marks. Plain functions, any thread.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"

namespace longshore {

// These marks enclose a thought in a message's content.
inline constexpr std::string_view kOpenThought = "<think>";
inline constexpr std::string_view kCloseThought = "</think>";

enum class ChatPart : uint8_t { kContent, kThought, kCall, kTool };

// PartName: identifies a part of a message; for kTool, a tool of the whole conversation.
struct PartName {
  size_t message = 0;
  ChatPart part = ChatPart::kContent;
  size_t number = 0;  // index of the call, the tool, or the text in a content list

  auto operator<=>(const PartName&) const = default;
};

// PartMark: the start or the end of a part, as found in a text.
struct PartMark {
  PartName name;
  bool end = false;
  size_t at = 0;  // offset in the text without marks
};

enum class MarkedRoles : uint8_t { kAll, kAssistant };

// Returns whether the message has the role of the assistant.
bool is_assistant(const Json& message);

// Returns the parts of messages and tools in order. A blank part is left out.
std::vector<PartName> parts_of(const Json& messages, const Json& tools);

// Returns marks in the order of the text. The text must be `plain`, or `plain` followed by
// `behind`. Returns nullopt if the template refuses marks or writes another text because of them.
std::optional<std::vector<PartMark>> find_parts(const ChatTemplate& chat, const Json& messages,
                                                const ChatVariables& variables,
                                                std::string_view plain, std::string_view behind,
                                                MarkedRoles roles);

// Returns the thought before the answer, from its own member or from the content; empty if none.
std::string_view thought_of(const Json& message);

// Returns the content without its thought; if that is empty, the name of the first call, which may
// be empty too.
std::string words_of(const Json& message);

// Removes the blanks directly before a part in its own text and returns them. `name` must not name
// a tool.
std::string drop_blanks_before(Json& messages, const PartName& name);

// Returns a copy of the message without its thought.
Json without_thought(const Json& message);

}  // namespace longshore
