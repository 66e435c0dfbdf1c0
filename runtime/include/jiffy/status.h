// The outcome of a call that the system can refuse.
#pragma once

#include <string>
#include <utility>

namespace jiffy {

// Either success, or a sentence that says what was needed, what was found and what to do.
// Copyable, not thread safe.
class [[nodiscard]] Status {
 public:
  Status() = default;
  static Status error(std::string message) {
    Status status;
    status.message_ = std::move(message);
    status.ok_ = false;
    return status;
  }

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }
  const std::string& message() const { return message_; }

 private:
  bool ok_ = true;
  std::string message_;
};

}  // namespace jiffy
