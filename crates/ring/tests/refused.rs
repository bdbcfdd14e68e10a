//! A service that refuses a program says why, and the program hears it.

use crate::alone::alone;
use crate::common::service_with;
use ring::{Error, Options, Service};

#[test]
fn a_refused_registration_names_the_reason() {
    alone("refused::a_refused_registration_names_the_reason", check);
}

fn check() {
    let place = service_with(service::Options { max_applications: Some(1), ..service::Options::default() });
    let first = place.example("echo");
    let options = Options { control: Some(place.control.clone()), ..Options::default() };
    let e = Service::open(options).unwrap_err();
    let Error::NoService(why) = &e else { panic!("{e:?}") };
    assert_eq!(why, "the service refuses this process: the service's policy does not admit this user");
    drop(first);
}
