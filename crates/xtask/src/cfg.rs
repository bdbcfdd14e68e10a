//! Whether an item behind `#[cfg(...)]` can be part of the product.
//!
//! A condition is evaluated with `test`, `loom` and `fuzzing` off and everything else unknown: it is true, false, or depends. Only items
//! with a false condition are test code.

/// The value of a condition that is only partly known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Truth {
    /// The condition is true.
    Yes,
    /// The condition is false.
    No,
    /// The condition depends on the target or on features.
    Depends,
}

/// The value of the condition inside `cfg(...)`. Strings in it may have been blanked.
pub fn evaluate(condition: &str) -> Truth {
    let condition = condition.trim();
    let Some((name, rest)) = condition.split_once('(') else {
        return match condition {
            "test" | "loom" | "fuzzing" | "false" => Truth::No,
            "true" => Truth::Yes,
            _ => Truth::Depends,
        };
    };
    let inner = rest.trim_end().strip_suffix(')').unwrap_or(rest);
    let values: Vec<Truth> =
        split_arguments(inner).into_iter().filter(|part| !part.trim().is_empty()).map(evaluate).collect();
    match name.trim() {
        "not" => negate(values.first().copied().unwrap_or(Truth::Depends)),
        "all" => combine(&values, Truth::No, Truth::Yes),
        "any" => combine(&values, Truth::Yes, Truth::No),
        _ => Truth::Depends,
    }
}

fn negate(value: Truth) -> Truth {
    match value {
        Truth::Yes => Truth::No,
        Truth::No => Truth::Yes,
        Truth::Depends => Truth::Depends,
    }
}

/// `decisive` if any value is decisive, `otherwise` if no value depends.
fn combine(values: &[Truth], decisive: Truth, otherwise: Truth) -> Truth {
    if values.contains(&decisive) {
        decisive
    } else if values.contains(&Truth::Depends) {
        Truth::Depends
    } else {
        otherwise
    }
}

fn split_arguments(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, c) in list.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::{Truth, evaluate};

    #[test]
    fn only_what_cannot_be_in_the_product_is_test_code() {
        for (condition, expected) in [
            ("test", Truth::No),
            ("not(test)", Truth::Yes),
            ("all(test, not(loom))", Truth::No),
            ("all(loom, feature = \"x\")", Truth::No),
            ("any(test, feature = \"x\")", Truth::Depends),
            ("any(test, loom)", Truth::No),
            ("not(loom)", Truth::Yes),
            ("target_arch = \"x86_64\"", Truth::Depends),
            ("all(not(loom), target_os = \"linux\")", Truth::Depends),
            ("any(not(test), loom)", Truth::Yes),
        ] {
            assert_eq!(evaluate(condition), expected, "{condition}");
        }
    }
}
