//! Makes text from other programs safe for a terminal, a log and a table: bounded, on one line, in one writing direction.

/// True for characters that change how text around them is shown: control characters, line and paragraph separators, and characters that
/// set the writing direction or are invisible.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The text with hidden characters written as `\u{202e}`, cut to `most` characters.
#[must_use]
pub fn bounded(text: &str, most: usize) -> String {
    let mut shown = String::new();
    let mut left = most;
    // Each character becomes at least one: characters after the first `most` cannot be shown.
    for c in text.chars().take(most) {
        let written = if is_hidden(c) { c.escape_unicode().to_string() } else { c.to_string() };
        match left.checked_sub(written.chars().count()) {
            Some(rest) => left = rest,
            None => break,
        }
        shown.push_str(&written);
    }
    shown
}

/// A value from a file, for use in a message.
#[must_use]
pub fn shown(text: &str) -> String {
    const MOST: usize = 80;
    bounded(text, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_change_the_text_around_it_is_written_out() {
        assert_eq!(bounded("a\u{202e}b\nc\u{1b}[2Jd", 80), "a\\u{202e}b\\u{a}c\\u{1b}[2Jd");
        assert_eq!(bounded("\u{2066}\u{feff}\u{e0041}\u{9b}", 80), "\\u{2066}\\u{feff}\\u{e0041}\\u{9b}");
        assert_eq!(bounded("größer 不 \\ 'x'", 80), "größer 不 \\ 'x'");
    }

    #[test]
    fn it_is_no_longer_than_wanted_and_no_escape_is_cut() {
        assert_eq!(bounded("abcdef", 3), "abc");
        assert_eq!(bounded("\u{202e}\u{202e}", 12), "\\u{202e}");
        assert!((0..40).all(|most| bounded(&"x\u{202e}ü".repeat(20), most).chars().count() <= most));
    }
}
